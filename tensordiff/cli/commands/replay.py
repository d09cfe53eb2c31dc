"""``tensordiff replay``: runs one layer alone on the inputs of a dump, and compares its outputs with the dump's."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click

from tensordiff.capture.job import REPLAY, Job, Source, required_source
from tensordiff.capture.provenance import provenance_of
from tensordiff.capture.runner import Run
from tensordiff.capture.settings import Settings
from tensordiff.cli.commands.compare import CompareOptions, compare
from tensordiff.cli.consent import tell_offer, trust_option, with_consent
from tensordiff.cli.options import PATH, json_option
from tensordiff.cli.sources import follow
from tensordiff.cli.streams import say
from tensordiff.dump import Dump, open_dump
from tensordiff.errors import printable
from tensordiff.session.request import Request
from tensordiff.session.rerun.trust import RerunOffer, Trust, refuse_untrusted, rerun_offer, with_code_settings_of
from tensordiff.util.temporary_folders import temporary_folder


class ReplayOptions(NamedTuple):
    """Which call, of which model, and where a bundle goes."""

    source: str | None = None
    output: Path | None = None
    step: int = 0
    call: int = 1
    python: str | None = None
    trust_remote_code: bool = False
    trust_source: bool = False

    @property
    def said(self) -> Settings:
        """Whose code may be run, as given on the command line."""
        return Settings(python=self.python, trust_remote_code=self.trust_remote_code)


@click.command("replay")
@click.argument("dump", type=PATH)
@click.argument("layer")
@click.option("--source", metavar="SOURCE", help="Take the layer from this source (default: that of the dump).")
@click.option("-o", "--output", type=PATH, metavar="DIR", help="Write a bundle that runs with torch alone.")
@click.option("--step", type=click.IntRange(min=0), default=0, metavar="N", help="The step to replay (default 0).")
@click.option("--call", type=click.IntRange(min=1), default=1, metavar="N", help="The call to replay (default 1).")
@click.option("--python", metavar="PATH", help="Run in another interpreter.")
@click.option("--trust-remote-code", is_flag=True, help="Run code that comes with the model (default: never).")
@trust_option
@json_option
def command(dump: Path, layer: str, as_json: bool, **options: object) -> int:
    """Rebuild one layer with its weights, call it as the dump says it was called, and compare its output.

    --source runs the layer of another model on the dump's inputs: with right inputs, any error is the layer's own. -o
    writes a folder with the inputs, the outputs in the dump, the weights, and a repro.py that needs only torch and
    prints the same error.

    What made the dump is run again only if you captured it here. Anything else is shown first, and needs a typed yes
    or --trust-source; the interpreter and --trust-remote-code are never taken from a dump.

    Exit status: as compare: 0 agrees, 1 diverges, 2 inconclusive.
    """
    return replay(dump, layer, ReplayOptions(**options), as_json=as_json)  # type: ignore[arg-type]


def replay(path: Path, layer: str, options: ReplayOptions, *, as_json: bool) -> int:
    """Replay and compare; returns the exit status."""
    source, settings = _what_to_run(open_dump(path), options)
    with temporary_folder() as folder:
        more = {
            "dump": str(path.absolute()), "layer": layer, "step": options.step, "call": options.call,
            "bundle": None if options.output is None else str(options.output.absolute()),
        }  # fmt: skip
        settings = replace(settings, inject=None, ops=None, gradients=False)
        job = Job(source, settings, str(folder / "replayed"), REPLAY, more)
        done = follow(Run(job))
        only = rf"^{re.escape(str(done.facts['layer']))}(\(\d+\))?-output"
        request = Request(path, Path(done.path), only=only, step=options.step, learn=False)
        return compare(request, CompareOptions(as_json=as_json))


def _what_to_run(dump: Dump, options: ReplayOptions) -> tuple[Source, Settings]:
    if options.source is None:
        offer = with_consent(lambda trust: _trusted(dump, options, trust), trust_source=options.trust_source)
        tell_offer(offer, trust_source=options.trust_source)
        return offer.source, offer.settings
    source = required_source(options.source)
    return source, with_code_settings_of(options.said, _settings_for(source, dump, options), source)


def _trusted(dump: Dump, options: ReplayOptions, trust: Trust) -> RerunOffer:
    offer = rerun_offer(dump, "the dump", options.said)
    refuse_untrusted(offer, trust)
    return offer


def _settings_for(source: Source, dump: Dump, options: ReplayOptions) -> Settings:
    """How the dump was run, for a source that the user named; settings of one kind of source do not fit
    another kind.
    """
    made = provenance_of(dump)
    if made is None or made.source.kind != source.kind:
        return Settings()
    if made.is_own or options.trust_source:
        return made.settings
    if left_out := sorted(set(made.settings.to_json()) - set(made.plain().settings.to_json())):
        say(
            f"{printable(dump.path)} was not captured by you here ({made.doubt}), so of its settings "
            f"{', '.join(left_out)} {'is' if len(left_out) == 1 else 'are'} left out; --trust-source takes all"
        )
    return made.plain().settings
