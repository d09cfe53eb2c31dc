"""``tensordiff verify``: captures both sides, compares them without and with injection, and writes reports.

A side that is a dump is not run. If the candidate is a dump, the scenario with injection needs another dump of it that
was captured with injection; without one the scenario is left out, and the summary says so.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click

from tensordiff.capture.engines import spellings
from tensordiff.capture.events import Done
from tensordiff.capture.job import Job
from tensordiff.capture.runner import Run, dump_at
from tensordiff.cli.commands.compare import measure
from tensordiff.cli.options import (
    PATH,
    comparison_options,
    json_option,
    junit_option,
    make_request,
    source_options,
    stream_options,
    take,
)
from tensordiff.cli.sources import follow, open_dumps, sources_of
from tensordiff.cli.streaming import KEEPS, StreamChoice, make_stream_options, open_streamed, require_stream
from tensordiff.cli.streams import echo, say
from tensordiff.cli.summary import inconclusive_error
from tensordiff.dump import Dump
from tensordiff.dump.native.writer import DumpWriter
from tensordiff.errors import CaptureError, TensordiffError, WriteError, printable
from tensordiff.report.comparison_json import culprit_json, dumps
from tensordiff.report.junit import write_junit
from tensordiff.report.model import ReportModel, build_report
from tensordiff.report.verify_folder import (
    CANDIDATE_LAYERS,
    REFERENCE_LAYERS,
    WITH,
    WITHOUT,
    Verification,
    verify_summary,
    write_scenario,
)
from tensordiff.session.command_line import settings_words
from tensordiff.session.request import Request
from tensordiff.session.rerun.reruns import injection
from tensordiff.session.session import Session
from tensordiff.session.sources import source_in
from tensordiff.session.streaming.options import StreamOptions
from tensordiff.session.streaming.session import StreamedSession
from tensordiff.session.third_dumps import injected_beside, injected_path
from tensordiff.session.weights import weights_findings
from tensordiff.util.atomic_write import write_file
from tensordiff.util.remote import RemotePath
from tensordiff.util.shell_line import shell_line

SCHEMA = "tensordiff.verify/1"
KEPT = "kept"
"""The folder for what is kept of a stream."""


class VerifyOptions(NamedTuple):
    """What is written, and where."""

    output: Path
    save_layers: bool = False
    junit: Path | None = None
    as_json: bool = False
    streamed: StreamOptions | None = None
    """How to stream; None if both sides are captured first."""


@click.command("verify", epilog=f"A source is {spellings()}.")
@click.argument("reference", type=PATH, required=False)
@click.argument("candidate", type=PATH, required=False)
@click.option("-o", "--output", type=PATH, required=True, metavar="DIR", help="The folder to write.")
@click.option("--save-layers", is_flag=True, help="Keep the tensors too.")
@click.option("--suite", type=PATH, metavar="FILE", help="Verify every model of a suite (TOML) instead of one pair.")
@click.option("--fresh", is_flag=True, help="With --suite: verify again what is done already.")
@click.option(
    "--resume", is_flag=True, help="With --suite: assume that what cannot be checked (data, a hub) did not change."
)
@comparison_options
@source_options
@stream_options
@click.option(
    "--keep",
    type=click.Choice(KEEPS),
    default="diverging",
    help="With --stream: what to keep in DIR/kept (default: what diverges, and the inputs of its layers).",
)
@junit_option
@json_option
def command(reference: Path | None, candidate: Path | None, **options: Any) -> int:
    """Verify a candidate against a reference; each is a dump or a source.

    Sources are captured, the candidate a second time with the reference's inputs injected. If the candidate is a dump,
    nothing is run: the second scenario uses --injected, or the dump beside the candidate whose name ends in _injected,
    or is left out. With --weights the parameters are compared first.

    \b
    DIR/
      without_injection/  with_injection/    each with
        reference_layers/  candidate_layers/   with --save-layers
        module_names_reference.txt  module_names_candidate.txt
        mse_plot.png  layer_verification_report.txt  report.html  report.json
      summary.md                             both side by side: culprits, victims, what to try next

    With --stream both sides are compared while they run, and no dump of either is written; so nothing is injected.

    Exit status: as compare; for a suite, the worst of its models.

    \b
    tensordiff verify hf:MODEL max:MODEL -o report
    tensordiff verify hf:MODEL max:MODEL -o report --stream --window 8GB
    """
    from tensordiff.cli.commands.verify_suite import verify_suite  # verify_suite imports this module

    choice, keep, suite = take(options, StreamChoice), options.pop("keep"), options.pop("suite")
    require_stream(choice)
    written = {name: options.pop(name) for name in VerifyOptions._fields[:-1]}
    if choice.stream and (suite is not None or written["save_layers"]):
        name = "--save-layers" if suite is None else "--suite"
        raise click.UsageError(f"{name} is not for --stream, which writes no layers", click.get_current_context())
    streamed = make_stream_options(choice, keep, written["output"] / KEPT) if choice.stream else None
    chosen = VerifyOptions(**written, streamed=streamed)
    fresh, resume = options.pop("fresh"), options.pop("resume")
    if suite is not None:
        if fresh and resume:
            raise click.UsageError("--fresh and --resume: give one of them", click.get_current_context())
        if reference is not None:
            raise click.UsageError("give a suite or two sides, not both", click.get_current_context())
        return verify_suite(suite, make_request(Path(), Path(), **options), chosen, fresh=fresh, resume=resume)
    if reference is None or candidate is None:
        raise click.UsageError("Missing argument 'REFERENCE CANDIDATE'", click.get_current_context())
    return verify(make_request(reference, candidate, **options), chosen)


class _Captures(NamedTuple):
    """A session of both sides, captured or given, and what was captured for it."""

    session: Session
    injected: Path | None
    """The candidate, run with the reference's inputs."""
    left_out: str
    """Why there is no injected run."""
    folders: tuple[Path, ...]
    """The dumps that were captured for this."""
    files: tuple[str, ...]
    """The files that the child processes were made of."""


class VerifyResult(NamedTuple):
    """The verification, its session, and the files it depends on."""

    found: Verification
    session: Session
    files: tuple[str, ...]
    """The files that the child processes were made of, if any ran."""


def verify(request: Request, options: VerifyOptions) -> int:
    """Verify and print the result; returns the exit status. Raises after writing if the result is unknown."""
    verification, session, _ = verify_both(request, options)
    if options.as_json:
        echo(dumps(_as_json(verification, options)))
    else:
        echo(verification.whole.sentence)
        if about_weights := _weights_of_culprit(verification.whole):
            echo(about_weights)
        if verification.left_out:
            say(f"the scenario with injection was left out: {printable(verification.left_out_sentence)}")
        say(f"written: {printable(options.output / 'summary.md')}")
    outcome = verification.whole.outcome
    if outcome.verdict == "unknown":
        raise inconclusive_error(session, outcome)
    return outcome.exit_status


def _weights_of_culprit(model: ReportModel) -> str:
    """A sentence on whether the culprit's weights are the same, if both captures wrote them; else empty."""
    if model.outcome.culprit is None or not model.details:
        return ""
    detail = model.details[0]
    told = detail.hint.sentence if detail.hint is not None and detail.hint.kind == "weights" else detail.weights
    return f"{told[:1].upper()}{told[1:]}." if told else ""


def verify_both(request: Request, options: VerifyOptions, title: str | None = None) -> VerifyResult:
    """Capture, compare and write everything."""
    title = title or f"{_side_name(request.candidate)} against {_side_name(request.reference)}"
    if options.streamed is not None:
        return _verify_streamed(request, options, options.streamed, title)
    with _captures(request, options) as captures:
        session, injected = captures.session, None
        without = whole = _scenario(session, options.output / WITHOUT, title)
        if captures.injected is not None:
            injected = _scenario(session.with_candidate(captures.injected), options.output / WITH, title)
            session = session.with_injected(captures.injected)
            whole = build_report(session, measure(session), title=without.title)
        has_layers = options.save_layers or not captures.folders
        verification = Verification(whole, without, injected, captures.left_out, has_layers=has_layers)
        write_file(options.output / "summary.md", verify_summary(verification), make_folders=True)
        write_junit(options.junit, whole.outcome, whole.title)
        if options.save_layers:
            _save_layers(session, options.output)
    return VerifyResult(verification, session, captures.files)


def _verify_streamed(request: Request, options: VerifyOptions, streamed: StreamOptions, title: str) -> VerifyResult:
    """Compare while the sources run, and write everything except the scenario with injection, unless an injected run is
    given.
    """
    kept = options.output / KEPT
    for side in ("reference", "candidate"):
        if dump_at(str(kept / side)):
            shutil.rmtree(kept / side)  # kept by an earlier verification
    with open_streamed(request, streamed) as session:
        model = _scenario(session, options.output / WITHOUT, title)
        if model.outcome.culprit is not None:
            session.keep_culprit(model.outcome.culprit)
        why, lines = _not_injected(session, model, kept)
        names = {side.side for side in session.streamed}
        reference = kept / "reference" if "reference" in names else session.reference.path
        candidate = kept / "candidate" if "candidate" in names else session.candidate.path
        sides = str(reference), str(candidate)
        verification = Verification(model, model, None, why, inject_with=lines, keep=streamed.keep, sides=sides)
        write_file(options.output / "summary.md", verify_summary(verification), make_folders=True)
        write_junit(options.junit, model.outcome, model.title)
    return VerifyResult(verification, session, ())


def _not_injected(session: StreamedSession, model: ReportModel, kept: Path) -> tuple[str, tuple[str, ...]]:
    """Why nothing was injected under ``--stream``, and the commands that would do it."""
    request, culprit = session.request, model.outcome.culprit
    if request.injected is not None:
        return "", ()
    source, is_dump = source_in(request.candidate), source_in(request.reference) is None
    if source is None or (session.options.keep == "none" and not is_dump):
        return "with --stream no dump of the reference is there to be injected; verify without it", ()
    if culprit is None:
        return "with --stream nothing is injected", ()
    reference = request.reference if is_dump else kept / "reference"
    lines = []
    if isinstance(reference, RemotePath):
        lines.append(shell_line(["tensordiff", "convert"], [reference]) + " -o REF_DIR")
        reference = Path("REF_DIR")
    (job,) = (side.job for side in session.streamed if side.side == "candidate")
    how = settings_words(replace(job.settings, weights=False, inject=None))
    at = ["--inject-at", culprit.pair.candidate.layer]
    words = ["tensordiff", "capture", str(source), *how, "--inject", str(reference), *at]
    lines.append(f"{shell_line(words)} -o DIR")
    what = "nothing is injected" if is_dump else "only the culprit's inputs are kept"
    return f"with --stream {what}", tuple(lines)


def _side_name(side: Path) -> str:
    """A side's name for the title: a source as it was given, a dump by the last part of its path."""
    return str(side) if source_in(side) else Path(os.path.abspath(side)).name  # noqa: PTH100 - also of ".."


def _scenario(session: Session, folder: Path, title: str) -> ReportModel:
    model = build_report(session, measure(session), title=title)
    write_scenario(model, folder)
    return model


def _as_json(verification: Verification, options: VerifyOptions) -> dict[str, object]:
    models = {WITHOUT: verification.without, **({WITH: verification.injected} if verification.injected else {})}
    return {
        "schema": SCHEMA,
        "output": str(options.output),
        "verdict": verification.whole.verdict,
        "sentence": verification.whole.sentence,
        "culprit": culprit_json(verification.whole.outcome.culprit),
        "victims": [row.pair.name for row in verification.whole.victims],
        "left_out": verification.left_out_sentence or None,
        "scenarios": {
            name: {"verdict": model.verdict, "pairs": len(model.rows), "counts": model.counts, **model.statistics}
            for name, model in models.items()
        },
    }


# --- layers: captured, given, saved -----------------------------------------------------------------


@contextmanager
def _captures(request: Request, options: VerifyOptions) -> Iterator[_Captures]:
    """Capture the sides that are sources. These dumps are removed afterwards, unless they are to be kept."""
    folders: list[Path] = []
    try:
        yield _capture_all(request, options.output, folders)
    finally:
        if not options.save_layers:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)


def _capture_all(request: Request, output: Path, folders: list[Path]) -> _Captures:
    """Run the sources, and the candidate a second time with injection; adds the written folders to ``folders``."""
    sources, job = sources_of(request), None
    sources = replace(sources, request=replace(request, injected=None))
    files: list[str] = []
    while (side := sources.side) is not None:
        folder = output / WITHOUT / (REFERENCE_LAYERS if side == "reference" else CANDIDATE_LAYERS)
        job = sources.job(folder)
        folders.append(folder)
        files += _capture(job, folder, side).files
        sources = sources.with_dump(folder)
    session = open_dumps(sources.request)
    _say_weights(session)
    if request.injected is not None:
        return _Captures(session, request.injected, "", tuple(folders), tuple(files))
    if job is None or sources.candidate is None:
        beside = injected_beside(request.candidate)
        why_not = _no_injected(request.candidate) if beside is None else _why_not_injected(session, beside)
        return _Captures(session, None if why_not else beside, why_not, tuple(folders), tuple(files))
    folder = output / WITH / CANDIDATE_LAYERS
    # Injection is about the forward: gradients have nothing to be injected into.
    settings = replace(job.settings, inject=injection(session, "all"), gradients=False)
    job = replace(job, settings=settings, output=str(folder.absolute()))
    folders.append(folder)
    try:
        files += _capture(job, folder, "candidate, injected").files
    except CaptureError as error:
        return _Captures(session, None, str(error), tuple(folders), tuple(files))
    return _Captures(session, folder, "", tuple(folders), tuple(files))


def _say_weights(session: Session) -> None:
    """Report whether weights differ before anything is injected: a difference in weights ends most searches."""
    for finding in weights_findings(session.weights) if session.weights is not None else ():
        where = f"{printable(finding.where)}: " if finding.where else ""
        say(f"{where}{printable(finding.what)}")


def _why_not_injected(session: Session, beside: Path) -> str:
    """Why a dump that merely lies beside the candidate is not used; empty if it is used."""
    try:
        session.with_injected(beside)
    except TensordiffError as error:
        return str(error)
    return ""


def _no_injected(candidate: Path) -> str:
    return (
        "the candidate is a dump, there is none made with injection beside it "
        f"({printable(injected_path(candidate))}), and --injected was not given; make one with tensordiff capture "
        "SOURCE --inject REF"
    )


def _capture(job: Job, folder: Path, label: str) -> Done:
    if dump_at(str(folder)):
        shutil.rmtree(folder)  # kept by an earlier verification
    return follow(Run(replace(job, lists_files=True)), label)


def _save_layers(session: Session, output: Path) -> None:
    _save_dump(session.reference, output / WITHOUT / REFERENCE_LAYERS)
    _save_dump(session.candidate, output / WITHOUT / CANDIDATE_LAYERS)
    if session.third_dumps.injected is not None:
        _save_dump(session.third_dumps.injected, output / WITH / CANDIDATE_LAYERS)
        _link(output / WITHOUT / REFERENCE_LAYERS, output / WITH / REFERENCE_LAYERS)


def _save_dump(dump: Dump, folder: Path) -> None:
    """Write a dump in tensordiff's own format, unless it was captured there."""
    if dump.path == folder:
        return
    with DumpWriter(folder, dump.facts, overwrite=True) as writer:
        for entry in dump.entries:
            origin = {} if entry.origin is None else entry.origin._asdict()
            writer.add(entry.name, entry.read(), step=entry.step, call=entry.call, **origin)


def _link(folder: Path, other: Path) -> None:
    """Copy a dump, with hard links if the file system supports them."""
    shutil.rmtree(other, ignore_errors=True)
    try:
        shutil.copytree(folder, other, copy_function=_link_file)
    except OSError as error:
        raise WriteError(f"{printable(other)}: the layers could not be saved: {error.strerror or error}") from error


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
