"""The only owner of the session in the app: only it opens, realigns and measures.

It holds what is requested (the request with its tolerance, the rule book) and what is shown (the session, its listing
and the measured rows). Rules, tolerance, injection, search and reports all use these, so that the next rerun uses what
the panel shows, whether it is written to a file or not.

Work runs in threads and comes back as messages, which the screen passes to ``take_…``. Opening and realigning are one
kind of work: a change that comes while one is in progress restarts it with everything requested by then, so no change
is lost. A streamed comparison is aligned and measured by one thread, because the source runs meanwhile; tensors that it
released cannot be measured again (``why_fixed``). No widget is touched here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

from tensordiff.align.match import Pair
from tensordiff.align.rules.file import RulesFile
from tensordiff.align.rules.rule_book import RuleBook
from tensordiff.align.rules.tables import LARGEST_LIMIT
from tensordiff.compare.judge.verdict import floor_for
from tensordiff.compare.row import Row
from tensordiff.dump.lint import Finding
from tensordiff.errors import AlignError
from tensordiff.search.outcome import Outcome
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.session.storage.state import DumpIdentity, SessionState, row_name
from tensordiff.session.streaming.options import StreamOptions
from tensordiff.session.streaming.session import StreamedSession
from tensordiff.session.weights import open_checkpoints, refuse_checkpoints
from tensordiff.tui.comparison import measurement
from tensordiff.tui.comparison.messages import (
    Aligned,
    AlignmentFailed,
    AlignmentTask,
    CheckpointsOpened,
    DumpsChanged,
    Measurement,
    MeasurementEnded,
    RowsMeasured,
    StreamEnded,
)
from tensordiff.tui.comparison.session_keeper import SessionKeeper, identities
from tensordiff.tui.comparison.streaming import PostMessage, Start, StreamRun, run_stream
from tensordiff.tui.permissions import ALL_PERMISSIONS, Permissions
from tensordiff.tui.table.model import Listing
from tensordiff.util.garbage_collector import freeze_heap, heap_frozen
from tensordiff.util.slices import release

StartThread = Callable[[str, Callable[[], object]], object]
"""Runs a function in a thread; another one of the same group replaces it."""
_STREAMING = "the comparison is being streamed; x ends it"
_STREAMED = (
    "this comparison was streamed, and what agrees was not kept: c captures the candidate into a dump, which can be "
    "compared anew"
)


class SessionOwner:
    """The session of one comparison, and what is requested of it."""

    def __init__(
        self,
        request: Request,
        start: StartThread,
        post: PostMessage,
        *,
        saves_state: bool = True,
        state: SessionState | None = None,
        permissions: Permissions = ALL_PERMISSIONS,
    ) -> None:
        self._start, self._post, self._permissions = start, post, permissions
        self.asked = request
        """The user's first request, possibly with sources."""
        self.request = request
        """The current request; ahead of ``session.request`` while dumps are being opened."""
        self.book = RuleBook(RulesFile())
        """The rules as they are shown; ahead of ``session.rules`` while the dumps are being realigned."""
        self.session: Session | None = None
        self.listing = Listing.of(())
        self.outcome: Outcome | None = None
        """None until all rows are measured."""
        self.culprits: frozenset[int] = frozenset()
        self.findings: tuple[Finding, ...] = ()
        self.keeper = SessionKeeper(state=state or SessionState())
        self._is_restored = not saves_state
        self._must_open = False
        self._alignment: AlignmentTask | None = None
        self._replaced: list[tuple[Session, Listing]] = []
        """What was shown before the last alignment, until it is freed."""
        self._measurement: Measurement | None = None
        self._stream: StreamRun | None = None
        """The stream in progress."""
        self._stream_task: AlignmentTask | None = None
        self._before_stream = request
        """The last request that was not a stream."""
        self._on_disk: tuple[DumpIdentity, DumpIdentity] | None = None

    @property
    def rules(self) -> RulesFile:
        """The rules as they are shown, whether or not they are written to a file or the dumps are aligned
        by them yet.
        """
        return self.book.rules

    @property
    def is_aligning(self) -> bool:
        """Whether dumps are being opened or realigned."""
        return self._alignment is not None

    @property
    def rows(self) -> Sequence[Row]:
        """This session's rows so far, without those carried over from the previous one."""
        if self.outcome is not None:
            return self.outcome.rows  # not copied: of a million that takes as long as a key may wait
        return cast("list[Row]", self.listing.rows[: self.listing.measured])

    def rows_around(self, pair: Pair) -> tuple[Sequence[Row], int | None]:
        """All rows that are shown, and the index of a pair's row among them."""
        at = self.listing.positions.get(row_name(pair))
        rows = () if self.outcome is None else self.outcome.rows
        if at is not None and at < len(rows) and rows[at].pair is pair:
            return rows, at
        return self.listing.known_rows(pair)

    # --- opening and aligning --------------------------------------------------------------------

    def open(self, request: Request) -> None:
        """Open other dumps, or the same ones again, aligned by the rules as they are shown."""
        self._leave_stream()
        self.request, self._must_open = request, True
        self._align()

    def take_offered(self) -> None:
        """Open the dumps with the session file that came with them; what was saved before is dropped."""
        self.keeper.take_offered()
        self.book = RuleBook(RulesFile())
        self.open(self.request)

    def edit_rules(self, book: RuleBook) -> None:
        """Align by another rule book; raises ``AlignError`` if that is impossible now."""
        self._refuse_if_fixed()
        self.book = book
        self.keeper.note(rules=book.rules, rules_base=book.saved_rules)
        self._align()

    def rules_written(self, book: RuleBook, path: Path) -> None:
        """Note that the rules are in a file now. Pairs and numbers stay, unless they are of other rules."""
        self.book = book
        self.keeper.note(rules=book.rules, rules_base=book.saved_rules)
        self.request = replace(self.request, rules=path)
        if self.session is not None:
            self.session = self.session.with_rules_file(path, book.rules)
        if self._alignment is not None or (self.session is not None and self.session.rules != book.rules):
            self._align()

    def _align(self) -> None:
        session = None if self._must_open else self.session
        keeper = self.keeper if self._is_restored else None
        self._alignment = AlignmentTask(
            request=self.request, rules=self.rules, session=session, keeper=keeper, listing=self.listing
        )
        self._start("align", partial(self._run_alignment, self._alignment))

    def _run_alignment(self, task: AlignmentTask) -> None:
        """Open or realign; runs in a thread."""
        try:
            if task.session is None and (sides := open_checkpoints(task.request)) is not None:
                self._post(CheckpointsOpened(task, *sides))
                return
            keeper = task.keeper or SessionKeeper.restored(task.request, self._permissions)
            on_disk = identities(task.request) if task.session is None else None
            with heap_frozen():
                if task.session is None:
                    session = Session.open(task.request, keeper.state)
                    refuse_checkpoints(session.reference, session.candidate)
                else:
                    session = task.session.realigned(task.rules)
                findings = measurement.header_findings(session)
                listing = measurement.listing_of(session, task.listing)
        except Exception as error:  # the screen reports the error, as a problem of the dumps or as a defect
            self._post(AlignmentFailed(task, error))
            return
        self._post(Aligned(task, session, listing, findings, keeper, on_disk))

    def take_alignment(self, message: Aligned) -> bool:
        """Take an alignment; returns False if it is no longer requested."""
        if message.task is not self._alignment:
            return False
        self._alignment, self._must_open = None, False
        self.keeper, self._is_restored = message.keeper, True
        is_streamed = isinstance(message.session, StreamedSession)
        self._on_disk = None if is_streamed else message.on_disk or self._on_disk
        session, threshold = message.session, self.request.limits.threshold
        if session.request.limits.threshold != threshold:  # it was changed meanwhile
            session = session.with_threshold(threshold)
        self._replaced = [] if self.session is None else [(self.session, self.listing)]
        self.session, self.request = session, session.request
        self.listing, self.findings = message.listing, message.findings
        self._forget_measured()
        is_same = session.rules == self.book.rules and (self.book.past or self.book.future)
        book = self.book if is_same else RuleBook(session.rules)  # edits can be undone as long as they are in force
        self.book = replace(book, presets=session.dumps.preset_rules, saved_rules=session.saved_rules)
        return True

    def takes(self, message: CheckpointsOpened) -> bool:
        """Whether the opened checkpoints are what is requested now."""
        return message.task is self._alignment

    def take_failure(self, message: AlignmentFailed) -> bool:
        """Keep what is shown; returns False if the failed work is no longer requested."""
        if message.task is not self._alignment:
            return False
        self._alignment = None
        if self.session is not None:
            self.request = self.session.request
            if self._must_open and self.session.rules != self.rules:  # rules that were to take effect with the opening
                self._must_open = False
                self._align()
        self._must_open = False
        return True

    # --- tolerance -------------------------------------------------------------------------------

    @property
    def threshold(self) -> float | None:
        """The largest ``rel_l2`` that still agrees, if one was given."""
        return self.request.limits.threshold

    def judge_by(self, threshold: float | None) -> None:
        """Judge all pairs by another threshold; call ``measure`` afterwards.

        Raises ``AlignError`` for an invalid threshold, or if that is impossible now.
        """
        self._refuse_if_fixed()
        limits = replace(self.request.limits, threshold=threshold)
        if self.session is not None:
            self.session = self.session.with_threshold(threshold)
            self.request = replace(self.request, limits=limits)
            self._forget_measured()

    def scaled_threshold(self, way: int) -> float:
        """Ten times the current threshold, or a tenth; unchanged if the result would not be a valid limit."""
        inexact = (row.dtypes for row in self.listing.rows if row and row.dtypes and not row.is_exact)
        dtypes = next(inexact, ("float32", "float32"))
        now = floor_for(*dtypes)[1].agrees if self.threshold is None else self.threshold
        scaled = now * 10.0**way
        return scaled if scaled < LARGEST_LIMIT and (scaled or not now) else now

    # --- measuring -------------------------------------------------------------------------------

    def _forget_measured(self) -> None:
        self.outcome, self.culprits, self._measurement = None, frozenset(), None
        self.listing.measured = 0

    def measure(self) -> None:
        """Measure all pairs in a thread, in order."""
        if self.session is None:
            return
        if self._replaced:
            self._start("release", partial(_release, self._replaced))
        self._forget_measured()
        self._measurement = Measurement()
        if not isinstance(self.session, StreamedSession):
            self._start("measure", partial(self._run_measurement, self._measurement, self.session))
        elif self._stream is not None:
            self._stream.start(Start(self._measurement, self.session))

    def _run_measurement(self, run: Measurement, session: Session) -> None:
        """Measure; runs in a thread, and ends silently when another measurement began."""
        rows: list[Row] = []
        with heap_frozen():
            for batch in measurement.batches(session, rows):
                if run is not self._measurement:
                    return
                self._post(RowsMeasured(run, batch))
                freeze_heap()
            result = measurement.result_of(session, rows)
        self._post(MeasurementEnded(run, result))

    def take_rows(self, message: RowsMeasured) -> bool:
        """Put rows into the listing; returns False if they are of an earlier measurement."""
        if message.measurement is not self._measurement:
            return False
        self.listing.put(message.batch)
        return True

    def take_result(self, message: MeasurementEnded) -> bool:
        """Take the result of the rows; returns False if it is of an earlier measurement."""
        if message.measurement is not self._measurement:
            return False
        self.outcome, self.culprits = message.result.outcome, message.result.culprits
        self.findings = tuple(dict.fromkeys((*self.findings, *message.result.findings)))
        return True

    # --- streaming -------------------------------------------------------------------------------

    def stream(self, request: Request, options: StreamOptions) -> StreamRun:
        """Compare while the sources of a request run. What is shown stays until the pairs are known."""
        self._leave_stream()
        if not isinstance(self.session, StreamedSession):
            self._before_stream = self.request
        stream = self._stream = StreamRun(str(request.candidate), options)
        task = self._alignment = self._stream_task = AlignmentTask(
            request=request, rules=self.rules, session=None, keeper=self.keeper, listing=Listing.of(())
        )
        state = replace(self.keeper.state, rules=self.rules, rules_base=self.book.saved_rules)
        self._start("stream", lambda: run_stream(stream, task, state, self.keeper, self._post))
        return stream

    def _leave_stream(self) -> None:
        """Cancel the stream, because something else is to be compared."""
        if self._stream is not None:
            self._start("cancel", self._stream.cancel)
            self._stream = self._stream_task = None

    def take_stream_end(self, message: StreamEnded) -> None:
        """Keep what was streamed or, if that gave nothing, return to the previous comparison."""
        if message.task is not self._stream_task:
            return
        self._stream = self._stream_task = None
        if self._alignment is message.task:
            self._alignment = None
        elif self.outcome is None:
            self.open(self._before_stream)

    @property
    def why_fixed(self) -> str | None:
        """A sentence on why nothing can be measured again; None if it can."""
        if self._stream is not None:
            return _STREAMING
        return _STREAMED if isinstance(self.session, StreamedSession) else None

    def _refuse_if_fixed(self) -> None:
        if self.why_fixed is not None:
            raise AlignError(self.why_fixed)

    @property
    def is_streaming(self) -> bool:
        """Whether a source is running and compared meanwhile."""
        return self._stream is not None

    @property
    def stream_note(self) -> str:
        """A few words on the stream that is shown; empty if it is none."""
        session, listing = self.session, self.listing
        if not isinstance(session, StreamedSession):
            return ""
        if self._stream is not None:
            return "streaming"
        if listing.measured < len(listing):
            return f"stream ended by you at {listing.measured:,} of {len(listing):,} pairs"
        kept = sum(len(side.kept) for side in session.streamed)
        return f"streamed, {kept:,} of {sum(len(side.dump) for side in session.streamed):,} tensors kept"

    @property
    def kept_dumps(self) -> list[Path]:
        """Where the tensors kept from a stream are."""
        session = self.session
        return list(session.kept_dumps()) if isinstance(session, StreamedSession) else []

    # --- the disk --------------------------------------------------------------------------------

    def look_at_disk(self) -> None:
        """Check in a thread whether the dumps on disk are still those that are shown."""
        if self.session is not None and self._on_disk is not None and self._alignment is None:
            self._start("watch", partial(self._look_at_disk, self.session.request, self._on_disk))

    def _look_at_disk(self, request: Request, known: tuple[DumpIdentity, DumpIdentity]) -> None:
        on_disk = identities(request)
        if on_disk != known:
            self._post(DumpsChanged(on_disk))

    def take_change_on_disk(self, message: DumpsChanged) -> bool:
        """Note what is on disk now; returns False if that is known already, or other dumps are being opened."""
        if message.on_disk == self._on_disk or self._alignment is not None:
            return False
        self._on_disk = message.on_disk
        return True


def _release(replaced: list[tuple[Session, Listing]]) -> None:
    """In a thread: free the rows and pairs of a replaced alignment, which nobody shows any more, in slices."""
    for _ in range(len(replaced)):
        session, listing = replaced.pop()
        release(listing.rows, listing.labels, listing.positions)
        members: list[list[object]] = [[*session.alignment.pairs]]
        members += (part for index in session.dumps.names.made for part in index.members())
        del session, listing  # what held them goes first, or nothing were freed below
        release(*members)
