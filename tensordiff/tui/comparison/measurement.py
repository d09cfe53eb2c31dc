"""Measuring a session for the table, outside the event loop: rows in batches, and their result.

Rows come in batches about twenty times a second, however many there are.
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
"""Rows in a batch: as many as the table takes in without a stall."""


class Result(NamedTuple):
    """The result of all rows."""

    outcome: Outcome
    culprits: frozenset[int]
    """Positions of the rows that are wrong by themselves."""
    findings: tuple[Finding, ...]
    """Findings about the values."""


def listing_of(session: Session, before: Listing) -> Listing:
    """The pairs as the table lists them, with the numbers of the previous listing until they are measured again."""
    listing = Listing.of(session.pairs)
    if len(before):
        listing.carry(before)
    _ = listing.positions, listing.name_ranks  # computed here, so that the first sort by name does not wait
    return listing


def header_findings(session: Session) -> tuple[Finding, ...]:
    """Findings about the headers and the alignment."""
    return tuple(session.header_findings())


def batches(session: Session, rows: list[Row]) -> Iterator[Batch]:
    """Rows as they are measured, in batches; all of them are also appended to ``rows``."""
    sent, looked = 0, time.monotonic()
    for row in session.rows():
        rows.append(row)
        now = time.monotonic()
        if now - looked >= BATCH_S or len(rows) - sent >= MOST_ROWS:
            yield Batch.of(sent, rows[sent:])
            sent, looked = len(rows), now
    yield Batch.of(sent, rows[sent:])


def result_of(session: Session, rows: list[Row]) -> Result:
    """The result of all rows."""
    return _result(session.outcome(rows), rows)


def result_so_far(session: Session, rows: list[Row]) -> Result | None:
    """The result of the first rows, if one of them is a culprit; else None, because nothing can be said yet.

    No values are read: those of a stream that was ended are gone.
    """
    doubt = "the comparison was ended before all pairs were measured"
    outcome = Outcome(tuple(rows), session.unread, (doubt,), session.coverage(rows))
    return None if outcome.culprit is None else _result(outcome, rows)


def _result(outcome: Outcome, rows: list[Row]) -> Result:
    wrong = {id(row) for row in culprits(rows)}
    positions = frozenset(at for at, row in enumerate(rows) if id(row) in wrong)
    _ = outcome.verdict  # computed here, so that the screen does not look through all rows for it
    return Result(outcome, positions, tuple(lint_rows(rows)))
