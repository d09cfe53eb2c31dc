"""Measuring a session for the table, outside the event loop: rows in batches, and what they come to.

Rows come in batches some twenty times a second, however many there are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from tensordiff.compare.lint import lint_rows
from tensordiff.compare.row import Row
from tensordiff.dump.lint import Finding
from tensordiff.search.outcome import Outcome, culprits
from tensordiff.session.session import Session
from tensordiff.tui.table.model import Batch, Listing

BATCH_S = 0.05
MOST_ROWS = 2048
"""Rows of a batch: the table takes in so many without a stall."""


class Result(NamedTuple):
    """What all rows come to."""

    outcome: Outcome
    culprits: frozenset[int]
    """Positions of the rows that are wrong by themselves."""
    findings: tuple[Finding, ...]
    """What the values make doubtful."""


def listing_of(session: Session, before: Listing) -> Listing:
    """The pairs as the table lists them, with the numbers of the same pairs before until they are measured anew."""
    listing = Listing.of(session.pairs)
    if len(before):
        listing.carry(before)
    _ = listing.positions, listing.name_ranks  # made here, so that the first sort by name does not wait
    return listing


def header_findings(session: Session) -> tuple[Finding, ...]:
    """What the headers and the alignment make doubtful."""
    return tuple(session.header_findings())


def batches(session: Session, rows: list[Row]) -> Iterator[Batch]:
    """Rows as they are measured, some at a time; all of them are put into ``rows``."""
    sent, looked = 0, time.monotonic()
    for row in session.rows():
        rows.append(row)
        now = time.monotonic()
        if now - looked >= BATCH_S or len(rows) - sent >= MOST_ROWS:
            yield Batch.of(sent, rows[sent:])
            sent, looked = len(rows), now
    yield Batch.of(sent, rows[sent:])


def result_of(session: Session, rows: list[Row]) -> Result:
    """What the rows come to."""
    return _result(session.outcome(rows), rows)


def result_so_far(session: Session, rows: list[Row]) -> Result | None:
    """What the first rows come to, where one of them is a culprit; None where there is nothing to say yet.

    No value is read: those of a stream that was ended are not there.
    """
    doubt = "the comparison was ended before all pairs were measured"
    outcome = Outcome(tuple(rows), session.unread, (doubt,), session.coverage(rows))
    return None if outcome.culprit is None else _result(outcome, rows)


def _result(outcome: Outcome, rows: list[Row]) -> Result:
    wrong = {id(row) for row in culprits(rows)}
    positions = frozenset(at for at, row in enumerate(rows) if id(row) in wrong)
    _ = outcome.verdict  # found here, so that the screen does not look through all rows for it
    return Result(outcome, positions, tuple(lint_rows(rows)))
