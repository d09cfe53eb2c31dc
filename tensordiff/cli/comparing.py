"""Driving a session from the command line: lint line, streamed rows, summary or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from tensordiff.cli.opening import opened
from tensordiff.cli.page import Page
from tensordiff.cli.progress import COMPILING, Progress
from tensordiff.cli.streams import echo
from tensordiff.cli.summary import print_summary, print_worst, why_unknown
from tensordiff.cli.table import Table
from tensordiff.compare.engine import Row
from tensordiff.compare.lint import Finding, lint_pair
from tensordiff.compare.lint_rows import lint_rows
from tensordiff.report.compare_json import compare_json, dumps
from tensordiff.report.junit import write_junit
from tensordiff.search.outcome import Outcome
from tensordiff.session import Request, Session


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
    dumped = session.reference, session.candidate
    found = [*findings, *lint_rows(outcome.rows)]
    whole = compare_json(*dumped, session.alignment, outcome, found, logits, hint)
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
