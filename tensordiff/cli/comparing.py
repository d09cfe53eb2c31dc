"""Driving a session from the command line: lint line, streamed rows, summary or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import click

from tensordiff.cli.progress import Progress
from tensordiff.cli.table import Table, summary_lines
from tensordiff.compare.engine import Row
from tensordiff.compare.lint import Finding, lint_pair
from tensordiff.report.compare_json import compare_json, dumps
from tensordiff.search.outcome import Outcome
from tensordiff.session import Request, Session


class Talk(NamedTuple):
    """How much to say."""

    as_json: bool = False
    only_faults: bool = False
    quiet: bool = False


def compare(request: Request, talk: Talk) -> int:
    """Compare and report; the exit status."""
    session = Session.open(request)
    findings = list(lint_pair(session.reference, session.candidate, session.alignment))
    if talk.as_json:
        return _as_json(session, findings)
    table = Table(session)
    table.open(findings)
    outcome = Outcome(_stream(session, table, talk))
    for line in summary_lines(session, outcome):
        click.echo(line)
    return outcome.exit_status


def _as_json(session: Session, findings: Sequence[Finding]) -> int:
    with Progress("measuring", len(session.pairs)) as progress:
        outcome = Outcome(tuple(progress.over(session.rows())))
    whole = compare_json(session.reference, session.candidate, session.alignment, outcome, findings)
    click.echo(dumps(whole))
    return outcome.exit_status


def _stream(session: Session, table: Table, talk: Talk) -> tuple[Row, ...]:
    rows: list[Row] = []
    with Progress("measuring", len(session.pairs)) as progress:
        for row in progress.over(session.rows()):
            rows.append(row)
            if not talk.quiet and not (talk.only_faults and row.verdict.name == "agrees"):
                progress.clear()
                table.row(row)
    return tuple(rows)
