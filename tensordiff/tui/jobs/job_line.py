"""One line for what is running: a source in a child process, with its log on demand.

A thread iterates over the run and reports its events in messages; ``x`` ends the child, and so does leaving the
application. There is never more than one run; the several runs of one stream count as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import RichLog, Static
from textual.worker import get_current_worker

from tensordiff.capture.events import Done, Event, Failed, Note, Phase, Progress
from tensordiff.capture.runner import Run
from tensordiff.errors import printable
from tensordiff.tui.comparison.streaming import StreamRun
from tensordiff.tui.text import bar
from tensordiff.tui.threads import in_thread

_BAR = 20


class Purpose(Enum):
    """The purpose of a run."""

    SOURCE = auto()
    INJECTION = auto()
    CAPTURE = auto()
    REFERENCE_OPERATIONS = auto()
    CANDIDATE_OPERATIONS = auto()
    STREAM = auto()


class JobLine(Vertical):
    """The line; hidden while nothing runs."""

    DEFAULT_CSS = """
    JobLine { height: auto; max-height: 12; display: none; background: $panel; }
    JobLine.-shown { display: block; }
    JobLine > Static { height: 1; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    JobLine > RichLog { height: 10; display: none; background: $surface; }
    JobLine.-log > RichLog { display: block; }
    """

    @dataclass
    class Told(Message):
        """The run sent an event."""

        run: Run | StreamRun
        event: Event

    @dataclass
    class Ended(Message):
        """The run is over."""

        title: str
        end: Done | Failed
        purpose: Purpose
        is_cancelled: bool

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.run: Run | StreamRun | None = None
        self.title = self._phase = ""
        self._purpose: Purpose | None = None
        self._noted = 0

    def compose(self) -> ComposeResult:
        """The line, and the log below it."""
        yield Static("", markup=False)
        yield RichLog(markup=False, max_lines=2000)

    def start(self, run: Run | StreamRun, title: str, purpose: Purpose) -> None:
        """Follow a run until it ends."""
        self.run, self.title, self._purpose, self._phase, self._noted = run, title, purpose, "starting", 0
        self.query_one(RichLog).clear()
        self.add_class("-shown")
        self._line("starting", 0, 0)
        in_thread(self, "run", partial(self._follow, run))

    def _follow(self, run: Run | StreamRun) -> None:
        worker = get_current_worker()
        for event in run:
            if not worker.is_cancelled:
                self.post_message(self.Told(run, event))

    def cancel(self) -> bool:
        """End the run; returns whether there was one."""
        if self.run is None:
            return False
        self._line("cancelling", 0, 0)
        in_thread(self, "cancel", self.run.cancel)
        return True

    def on_unmount(self) -> None:
        """Leave no child process behind."""
        if self.run is not None:
            self.run.cancel()

    def on_job_line_told(self, message: Told) -> None:
        """Show an event of the run."""
        message.stop()
        if message.run is not self.run or self._purpose is None:
            return
        event = message.event
        self._show_log()
        if isinstance(event, Done | Failed):
            self._finish(message.run, self._purpose, event)
        elif isinstance(event, Phase):
            self._phase = f"{event.name} {event.detail}".strip()
            self._line(self._phase, 0, 0)
        elif isinstance(event, Progress):
            self._line(f"{self._phase} {event.what}".strip(), event.done, event.total)
        elif isinstance(event, Note):
            self.query_one(RichLog).write(Text(printable(event.text), "bold"))

    def _finish(self, run: Run | StreamRun, purpose: Purpose, end: Done | Failed) -> None:
        self.run = None
        self.remove_class("-shown")
        self.post_message(self.Ended(self.title, end, purpose, run.is_cancelled))

    def toggle_log(self) -> None:
        """Show or hide the log."""
        self.toggle_class("-log")
        self._show_log()

    def _show_log(self) -> None:
        """Append what the child printed since."""
        if self.run is None or not self.has_class("-log"):
            return
        whole = self.run.log()
        for line in whole[self._noted :].splitlines():
            self.query_one(RichLog).write(Text(printable(line)))
        self._noted = len(whole)

    def _line(self, what: str, done: int, total: int) -> None:
        line = Text(f"{printable(self.title)}: {printable(what)}")
        if total:
            line.append(f"  {done}/{total} ").append(bar(done, total, _BAR))
        line.append("   x cancels, L shows its log", "dim")
        self.query_one(Static).update(line, layout=False)
