"""A comparison that is measured while its source runs, as the app holds it.

``StreamRun`` is used like a ``Run``: the job line follows its events, shows its log and cancels it. It covers several
runs of the source, one after the other: one that lists, one that is compared, and those that fetch. The comparing
thread reports its progress to it, and waits in ``wait_for_start`` until the table shows the pairs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import NamedTuple, Self

from textual.message import Message

from tensordiff.capture.events import Done, Event, Failed, Phase, Progress
from tensordiff.capture.runner import Run
from tensordiff.compare.row import Row
from tensordiff.errors import CaptureError, TensordiffError, printable
from tensordiff.session.storage.state import SessionState
from tensordiff.session.streaming.options import StreamOptions
from tensordiff.session.streaming.session import StreamedSession, open_stream
from tensordiff.tui.comparison import measurement
from tensordiff.tui.comparison.messages import (
    Aligned,
    AlignmentTask,
    Measurement,
    MeasurementEnded,
    RowsMeasured,
    StreamEnded,
)
from tensordiff.tui.comparison.session_keeper import SessionKeeper
from tensordiff.tui.notice import sentence_of
from tensordiff.tui.table.model import Batch

PostMessage = Callable[[Message], object]


class Start(NamedTuple):
    """The table shows the pairs: the measurement to run, and its session."""

    measurement: Measurement
    session: StreamedSession


class StreamRun:
    """A streamed comparison. Iterate for its events; the last is ``Done`` or ``Failed``."""

    def __init__(self, source: str, options: StreamOptions) -> None:
        self.source, self.options = source, options
        self.is_cancelled = False
        self._runs: list[Run] = []
        self._lock = threading.Lock()
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._start: Start | None = None
        self._may_go_on = threading.Event()

    # --- for the job line ------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Event]:
        while True:
            event = self._events.get()
            yield event
            if isinstance(event, Done | Failed):
                return

    def cancel(self) -> None:
        """End what runs, and start nothing more; from any thread."""
        with self._lock:
            self.is_cancelled = True
            runs = list(self._runs)
        self._may_go_on.set()
        for run in runs:
            run.cancel()

    def log(self) -> str:
        """What the child processes printed so far."""
        with self._lock:
            runs = list(self._runs)
        return "".join(run.log() for run in runs)

    def start(self, start: Start) -> None:
        """Let the measurement begin, because the pairs are shown."""
        self._start = start
        self._may_go_on.set()

    # --- for the thread that compares ------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """Report progress, or the end."""
        self._events.put(event)

    def started(self, run: Run) -> None:
        """Note that a run of the source has begun."""
        with self._lock:
            self._runs.append(run)
            is_late = self.is_cancelled
        if is_late:
            run.cancel()

    def follow(self, run: Run, _label: str) -> Done:
        """Follow a run to its end, reporting its events."""
        with run:
            for event in run:
                if isinstance(event, Done):
                    return event
                if isinstance(event, Failed):
                    self.refuse_if_cancelled()
                    raise CaptureError(printable(event.sentence))
                self.tell(event)
        raise CaptureError(f"{printable(run.job.source)}: ended without a result")

    def wait_for_start(self) -> Start:
        """Wait until the pairs are shown."""
        self._may_go_on.wait()
        self.refuse_if_cancelled()
        if self._start is None:
            raise self.cancelled()
        return self._start

    def refuse_if_cancelled(self) -> None:
        """Raise if the user ended the stream."""
        if self.is_cancelled:
            raise self.cancelled()

    def cancelled(self) -> CaptureError:
        """The error for a stream that the user ended."""
        return CaptureError(f"{printable(self.source)}: cancelled while it was streamed")


def run_stream(
    stream: StreamRun, task: AlignmentTask, state: SessionState, keeper: SessionKeeper, post: PostMessage
) -> None:
    """Align and measure while the sources run; runs in a thread."""
    end: Done | Failed
    try:
        with open_stream(task.request, stream.options, stream.follow, state, stream.started) as session:
            listing = measurement.listing_of(session, task.listing)
            findings = measurement.header_findings(session)
            post(Aligned(task, session, listing, findings, keeper, None))
            _measure(stream, stream.wait_for_start(), post)
        end = Done(str(stream.options.folder), sum(len(side.kept) for side in session.streamed))
    except Exception as error:  # the job line shows the error
        end = Failed(sentence_of(error))
    post(StreamEnded(task))
    stream.tell(end)


def _measure(stream: StreamRun, start: Start, post: PostMessage) -> None:
    """Measure as the tensors come. If the user ends it after a divergence, that divergence is the result."""
    run, session = start
    stream.tell(Phase("comparing"))
    with _Sender(stream, start, post) as sender:
        try:
            for row in session.rows():
                sender.rows.append(row)
                stream.refuse_if_cancelled()
        except TensordiffError as error:
            if not stream.is_cancelled:
                raise
            if (so_far := measurement.result_so_far(session, sender.rows)) is not None:
                sender.send()
                post(MeasurementEnded(run, so_far))
            raise stream.cancelled() from error
    result = measurement.result_of(session, sender.rows)
    session.look_at_result(result.outcome)
    post(MeasurementEnded(run, result))


class _Sender:
    """Sends rows about twenty times a second from a thread of its own: the measuring thread may wait for the model."""

    def __init__(self, stream: StreamRun, start: Start, post: PostMessage) -> None:
        self.rows: list[Row] = []
        self._stream, self._start, self._post = stream, start, post
        self._sent = 0
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tensordiff-rows", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        if error is None:
            self.send()

    def _run(self) -> None:
        while not self._is_over.wait(measurement.BATCH_S):
            self.send()

    def send(self) -> None:
        """Send the rows that were measured since."""
        with self._lock:
            while rows := self.rows[self._sent : self._sent + measurement.MOST_ROWS]:
                self._post(RowsMeasured(self._start.measurement, Batch.of(self._sent, rows)))
                self._sent += len(rows)
                self._stream.tell(Progress(self._sent, len(self._start.session.pairs)))
