"""``tensordiff replay``: run one layer alone on the inputs of a dump, and compare its outputs with the dump's."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click

from tensordiff.capture.job import Job
from tensordiff.capture.provenance import Provenance, provenance_of
from tensordiff.capture.runner import Run
from tensordiff.capture.settings import Settings
from tensordiff.cli.commands.compare import CompareOptions, compare
from tensordiff.cli.options import PATH, json_option
from tensordiff.cli.sources import follow, required_source
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError, printable
from tensordiff.session.request import Request


class ReplayOptions(NamedTuple):
    """Which call, of which model, and where a bundle goes."""

    source: str | None = None
    output: Path | None = None
    step: int = 0
    call: int = 1
    python: str | None = None


@click.command("replay")
@click.argument("dump", type=PATH)
@click.argument("layer")
@click.option("--source", metavar="SOURCE", help="Take the layer from here; from what made the dump unless given.")
@click.option("-o", "--output", type=PATH, metavar="DIR", help="Write a bundle that runs with torch alone.")
@click.option("--step", type=click.IntRange(min=0), default=0, metavar="N", help="The step to replay (default 0).")
@click.option("--call", type=click.IntRange(min=1), default=1, metavar="N", help="The call to replay (default 1).")
@click.option("--python", metavar="PATH", help="Run in another interpreter.")
@json_option
def command(dump: Path, layer: str, as_json: bool, **options: object) -> int:
    """Rebuild one layer with its weights, call it as the dump says it was called, and compare what it gives.

    With --source it is the layer of another model that is run on the dump's inputs: right inputs, so whatever is
    wrong is its own. With -o a folder is written with the inputs, the outputs that the dump has, the weights and a
    repro.py that needs torch alone and prints the same error.

    Exit status: as compare: 0 agrees, 1 diverges, 2 could not tell.
    """
    return replay(dump, layer, ReplayOptions(**options), as_json=as_json)  # type: ignore[arg-type]


def replay(path: Path, layer: str, options: ReplayOptions, *, as_json: bool) -> int:
    """Replay and compare; the exit status."""
    provenance = _provenance(path, options)
    with tempfile.TemporaryDirectory(prefix="tensordiff-") as folder:
        more = {
            "dump": str(path.absolute()), "layer": layer, "step": options.step, "call": options.call,
            "bundle": None if options.output is None else str(options.output.absolute()),
        }  # fmt: skip
        settings = replace(
            provenance.settings, inject=None, ops=None, python=options.python or provenance.settings.python
        )
        job = Job(provenance.source, settings, str(Path(folder) / "replayed"), "replay", more)
        done = follow(Run(job))
        only = rf"^{re.escape(str(done.facts['layer']))}(\(\d+\))?-output"
        return compare(Request(path, Path(done.path), only=only), CompareOptions(as_json=as_json))


def _provenance(path: Path, options: ReplayOptions) -> Provenance:
    found = provenance_of(open_dump(path))
    if options.source is not None:
        source = required_source(options.source)
        is_alike = found is not None and found.source.kind == source.kind  # settings of one kind are not for another
        return Provenance(source, found.settings if found and is_alike else Settings())
    if found is None:
        raise CaptureError(f"{printable(path)}: does not say which source made it; give one with --source hf:… or py:…")
    return found
