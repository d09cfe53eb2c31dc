"""Opening, aligning and measuring, outside the event loop.

Each function runs in a thread, blocks as it likes, and tells what it has by messages; the screen only
shows them. Rows come in batches some twenty times a second, however many there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from textual.message import Message

from tensordiff.compare.lint import lint_pair, lint_rows
from tensordiff.compare.row import Row
from tensordiff.dump.lint import Finding
from tensordiff.search.outcome import Outcome, culprits
from tensordiff.session.session import Session
from tensordiff.tui.table.model import Batch, Listing
from tensordiff.util.garbage_collector import freeze_heap, heap_frozen

Post = Callable[[Message], object]
IsCancelled = Callable[[], bool]
BATCH_S = 0.05
_MOST = 2048
"""Rows of a batch: so many are taken in without a stall."""


@dataclass
class Opened(Message):
    """Both dumps are open and aligned."""

    session: Session
    listing: Listing
    findings: tuple[Finding, ...]


@dataclass
class Measured(Message):
    """Some rows more."""

    session: Session
    batch: Batch


@dataclass
class Finished(Message):
    """All rows are measured."""

    session: Session
    outcome: Outcome
    culprits: frozenset[int]
    """Positions of what is wrong by itself."""
    findings: tuple[Finding, ...]
    """What the values make doubtful."""


def opened(session: Session, before: Listing | None = None) -> Opened:
    """A session as the screen takes it, with the numbers of the same pairs before until they are measured anew."""
    findings = tuple(lint_pair(session.reference, session.candidate, session.alignment))
    listing = Listing.of(session.pairs)
    if before is not None and len(before):
        listing.carry(before)
    _ = listing.positions, listing.name_ranks  # made here, so that the first sort by name does not wait
    return Opened(session, listing, findings)


def measure(session: Session, post: Post, is_cancelled: IsCancelled) -> None:
    """Measure all pairs in order; leaves quietly when cancelled."""
    rows: list[Row] = []
    with heap_frozen():
        for batch in _batches(session, rows):
            if is_cancelled():
                return
            post(Measured(session, batch))
            freeze_heap()
        end = finished(session, rows)
    if not is_cancelled():
        post(end)


def _batches(session: Session, rows: list[Row]) -> Iterator[Batch]:
    """Rows as they are measured, some at a time; all of them are put into ``rows``."""
    sent, looked = 0, time.monotonic()
    for row in session.rows():
        rows.append(row)
        now = time.monotonic()
        if now - looked >= BATCH_S or len(rows) - sent >= _MOST:
            yield Batch.of(sent, rows[sent:])
            sent, looked = len(rows), now
    yield Batch.of(sent, rows[sent:])


def finished(session: Session, rows: list[Row]) -> Finished:
    """What the rows come to."""
    wrong = {id(row) for row in culprits(rows)}
    places = frozenset(at for at, row in enumerate(rows) if id(row) in wrong)
    outcome = session.outcome(rows)
    _ = outcome.verdict  # found here, so that the screen does not look through all rows for it
    return Finished(session, outcome, places, tuple(lint_rows(rows)))
