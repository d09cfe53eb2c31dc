"""``tensordiff compare``: prints rows as they are measured, then a summary; or one JSON object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import click

from tensordiff.cli.options import (
    comparison_options,
    json_option,
    junit_option,
    keep_option,
    make_request,
    source_options,
    stream_options,
    take,
    two_sides,
)
from tensordiff.cli.progress import Progress
from tensordiff.cli.sources import open_dumps, run_sources
from tensordiff.cli.streaming import (
    StreamChoice,
    make_stream_options,
    open_streamed,
    parse_keep,
    require_stream,
)
from tensordiff.cli.streams import Page, echo, say
from tensordiff.cli.summary import inconclusive_error, print_summary, print_worst
from tensordiff.cli.table import Table
from tensordiff.compare.lint import lint_rows
from tensordiff.compare.row import Row
from tensordiff.dump.lint import Finding
from tensordiff.report.comparison_json import COMPARE_SCHEMA, compare_json, dumps
from tensordiff.search.outcome import Outcome
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.session.sources import refuse_unused_options
from tensordiff.session.weights import compare_checkpoints, open_checkpoints


class CompareOptions(NamedTuple):
    """What is printed and written."""

    as_json: bool = False
    only_faults: bool = False
    quiet: bool = False
    worst: int = 0
    """How many of the culprit's largest errors to show."""
    junit: Path | None = None
    """The file for JUnit XML."""
    choice: StreamChoice = StreamChoice()


@click.command("compare")
@two_sides
@comparison_options
@source_options
@keep_option
@stream_options
@json_option
@junit_option
@click.option("--faults", "only_faults", is_flag=True, help="Print only rows that do not agree.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the summary.")
@click.option(
    "--worst", type=click.IntRange(min=0), default=0, metavar="N", help="Show the culprit's N largest errors."
)
def command(reference: Path, candidate: Path, **options: Any) -> int:
    """Pair the tensors of two dumps, measure every pair, and name the first layer that is wrong.

    REFERENCE is the dump you trust, CANDIDATE the one under test. Rows come in execution order.

    \b
    ✓ agrees    the difference is rounding
    ~ drifts    it differs because its input already did
    ✗ diverges  inputs agree and the output does not
    ? unknown   it could not be compared; the reason is given

    Two checkpoints have no execution order: they are compared as parameters, as tensordiff weights does.

    With --stream sources are compared while they run, and only what diverges is written (--keep diverging, none or
    all, or a DIR for it):

    \b
    tensordiff compare hf:MODEL py:port.py:load --stream --stop
    tensordiff compare REF_DUMP max:MODEL --stream --window 8GB --keep all:runs
    """
    choice = take(options, StreamChoice)
    require_stream(choice)
    chosen = CompareOptions(**{name: options.pop(name) for name in CompareOptions._fields[:-1]}, choice=choice)
    request = make_request(reference, candidate, **options)
    checkpoints = open_checkpoints(request)
    if checkpoints is None:
        return compare(request, chosen)
    from tensordiff.cli.commands.weights import WeightsOptions, print_weights  # few comparisons need it

    refuse_unused_options(request, reruns=True)
    printed = WeightsOptions(as_json=chosen.as_json, schema=COMPARE_SCHEMA, junit=chosen.junit)
    return print_weights(compare_checkpoints(request, *checkpoints), printed)


def compare(request: Request, options: CompareOptions) -> int:
    """Compare and print; returns the exit status. Raises after printing if the result is unknown."""
    if options.choice.stream:
        opened = _streamed(request, options.choice)
    else:  # without a terminal this replaces the app, so it accepts the options that the app's reruns need
        opened = nullcontext(open_dumps(run_sources(request, reruns=True)))
    with opened as session:
        findings = list(session.header_findings())
        printer = _print_json if options.as_json else _print_text
        outcome = printer(session, findings, options)
        if options.junit is not None:
            _write_junit(options.junit, outcome, request)
        if options.choice.stream and outcome.culprit is not None:
            _keep_culprit(session, outcome.culprit)
    if outcome.verdict == "unknown":
        raise inconclusive_error(session, outcome)
    return outcome.exit_status


def _streamed(request: Request, choice: StreamChoice) -> AbstractContextManager[Session]:
    """The session of sources that are compared while they run."""
    keep, folder = parse_keep(str(request.keep or "diverging"))
    return open_streamed(request, make_stream_options(choice, keep, folder))


def _write_junit(path: Path, outcome: Outcome, request: Request) -> None:
    from tensordiff.report.junit import write_junit

    write_junit(path, outcome, f"{request.candidate} against {request.reference}")


def _keep_culprit(session: Session, culprit: Row) -> None:
    from tensordiff.session.streaming.session import StreamedSession

    if isinstance(session, StreamedSession):
        session.keep_culprit(culprit)


def measure(session: Session) -> Outcome:
    """Measure every pair, with a progress line."""
    with Progress("measuring", len(session.pairs)) as progress:
        return session.outcome(progress.over(session.rows()))


def _print_json(session: Session, findings: Sequence[Finding], options: CompareOptions) -> Outcome:
    """Measure all pairs, and print them as one JSON object."""
    outcome = measure(session)
    logits = session.logits(outcome.rows)
    hint = session.hint(outcome.culprit) if outcome.culprit else None
    found = [*findings, *lint_rows(outcome.rows)]
    whole = compare_json(session, outcome, found, logits, hint)
    if stopped := _stopped(session, outcome):
        whole["stopped"] = {"pairs": len(outcome.rows), "of": len(session.pairs)}
        say(stopped)
    if outcome.culprit is not None and options.worst:
        whole["culprit"]["worst"] = [asdict(item) for item in session.worst(outcome.culprit, options.worst)]
    echo(dumps(whole))
    return outcome


def _print_text(session: Session, findings: Sequence[Finding], options: CompareOptions) -> Outcome:
    """Print each row as it is measured, then the summary."""
    page = Page.here()
    table = Table(session, page)
    table.introduce(findings)
    if session.pairs and not options.quiet:
        table.headings()
    outcome = session.outcome(_print_rows(session, table, options))
    print_summary(page, session, outcome, list(lint_rows(outcome.rows)))
    if stopped := _stopped(session, outcome):
        echo(stopped)
    if outcome.culprit is not None and options.worst:
        print_worst(page, session.worst(outcome.culprit, options.worst))
    return outcome


def _stopped(session: Session, outcome: Outcome) -> str:
    """A sentence if ``--stop`` has ended both runs; empty if all pairs were measured."""
    count, pairs = len(outcome.rows), len(session.pairs)
    return f"stopped at the first culprit: {count:,} of {pairs:,} pairs were compared" if count < pairs else ""


def _print_rows(session: Session, table: Table, options: CompareOptions) -> Iterator[Row]:
    """All rows, each printed as soon as it is measured."""
    with Progress("measuring", len(session.pairs)) as progress:
        for row in progress.over(session.rows()):
            if not options.quiet and not (options.only_faults and row.verdict.name == "agrees"):
                progress.clear()
                table.row(row)
            yield row
