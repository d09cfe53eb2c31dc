"""``tensordiff compare``: rows as they are measured, then what they come to.

Driving a session from the command line: lint line, streamed rows, summary or JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import click

from tensordiff.cli.capture_options import asked_settings, source_options
from tensordiff.cli.options import comparison, json_option, junit_option
from tensordiff.cli.progress import COMPILING, Progress
from tensordiff.cli.sources import opened
from tensordiff.cli.streams import Page, echo
from tensordiff.cli.summary import print_summary, print_worst, why_unknown
from tensordiff.cli.table import Table
from tensordiff.compare.lint import lint_pair, lint_rows
from tensordiff.compare.row import Row
from tensordiff.dump.lint import Finding
from tensordiff.report.json import compare_json, dumps
from tensordiff.report.junit import write_junit
from tensordiff.search.outcome import Outcome
from tensordiff.session.request import Request
from tensordiff.session.session import Session


@click.command("compare")
@comparison
@source_options
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
    ~ drifts    it differs, as what came in explains
    ✗ diverges  inputs agree and the output does not
    ? unknown   it could not be compared; the reason is given
    """

    talk = Talk(**{name: options.pop(name) for name in Talk._fields})
    return compare(request(reference, candidate, **options), talk)


def request(reference: Path, candidate: Path, **options: Any) -> Any:
    """What the options say, as the session takes it."""
    from tensordiff.compare.limits import Limits
    from tensordiff.compare.measure.dtype_plan import Tolerance
    from tensordiff.session.request import Request

    atol, rtol, threshold = options.pop("atol"), options.pop("rtol"), options.pop("threshold")
    asked = asked_settings(options)
    return Request(reference, candidate, limits=Limits(Tolerance.of(atol, rtol), threshold), settings=asked, **options)


class Talk(NamedTuple):
    """How much to say."""

    as_json: bool = False
    only_faults: bool = False
    quiet: bool = False
    worst: int = 0
    """How many of the culprit's largest errors to show."""
    junit: Path | None = None
    """Where JUnit XML goes."""


def compare(request: Request, talk: Talk) -> int:
    """Compare and report; the exit status. Raises, all being printed, where it could not be told."""
    session = opened(request)
    findings = list(lint_pair(session.reference, session.candidate, session.alignment))
    outcome = _as_json(session, findings, talk) if talk.as_json else _as_text(session, findings, talk)
    write_junit(talk.junit, outcome, f"{request.candidate} against {request.reference}")
    if outcome.verdict == "unknown":
        raise why_unknown(session, outcome)
    return outcome.exit_status


def _as_json(session: Session, findings: Sequence[Finding], talk: Talk) -> Outcome:
    with Progress("measuring", len(session.pairs), COMPILING) as progress:
        outcome = session.outcome(progress.over(session.rows()))
    logits = session.logits(outcome.rows)
    hint = session.hint(outcome.culprit) if outcome.culprit else None
    found = [*findings, *lint_rows(outcome.rows)]
    whole = compare_json(session, outcome, found, logits, hint)
    if outcome.culprit is not None and talk.worst:
        whole["culprit"]["worst"] = [asdict(item) for item in session.worst(outcome.culprit, talk.worst)]
    echo(dumps(whole))
    return outcome


def _as_text(session: Session, findings: Sequence[Finding], talk: Talk) -> Outcome:
    page = Page.here()
    table = Table(session, page)
    table.open(findings)
    if session.pairs and not talk.quiet:
        table.headings()
    outcome = session.outcome(_shown(session, table, talk))
    print_summary(page, session, outcome, list(lint_rows(outcome.rows)))
    if outcome.culprit is not None and talk.worst:
        print_worst(page, session.worst(outcome.culprit, talk.worst))
    return outcome


def _shown(session: Session, table: Table, talk: Talk) -> Iterator[Row]:
    """All rows, each shown as it is known."""
    with Progress("measuring", len(session.pairs), COMPILING) as progress:
        for row in progress.over(session.rows()):
            if not talk.quiet and not (talk.only_faults and row.verdict.name == "agrees"):
                progress.clear()
                table.row(row)
            yield row
