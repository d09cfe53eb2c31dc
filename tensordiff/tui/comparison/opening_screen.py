"""The frame of a comparison, painted before anything that compares is loaded.

Importing Textual alone takes a third of a second; numpy, the session and everything built on them take as long again.
So the first frame is made of Textual only, and a thread loads the rest. Neither this module nor ``app`` may import
anything heavy; ``test_opening_screen`` checks that. Keys typed meanwhile wait for the comparison.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.events import Key
from textual.message import Message
from textual.widgets import Static
from textual.worker import Worker, WorkerState

from tensordiff.tui.key_line import KeyLine
from tensordiff.tui.keys import bindings
from tensordiff.tui.launch import Launch
from tensordiff.tui.notice import sentence_of
from tensordiff.tui.sized_screen import SizedScreen
from tensordiff.tui.table.frames import PlotFrame, SummaryFrame, TableFrame
from tensordiff.util.garbage_collector import heap_frozen

if TYPE_CHECKING:
    from tensordiff.session.request import Request

NEEDS_DUMPS = frozenset({"bisect", "toggle_rules", "ops", "capture", "tolerance", "choose_tolerance", "export"})
"""Actions that need open dumps."""
_NEEDS_RUN = frozenset({"cancel_job", "job_log"})
_LEAVES = ("quit", "interrupt", "back")


@dataclass
class CouldNotOpen(Message):
    """The dumps could not be opened."""

    sentence: str


class OpeningScreen(SizedScreen[None]):
    """A comparison that is still empty."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("diff")
    BINDING_GROUP_TITLE = "Comparison"

    @dataclass
    class Loaded(Message):
        """Everything that compares is loaded."""

        request: Request
        typed: list[Key]
        """Keys that were pressed meanwhile; more may be added until the screen is left."""

    def __init__(self, launch: Launch, columns: tuple[str, ...] | None = None) -> None:
        super().__init__()
        self.launch, self.columns = launch, columns
        self.typed: list[Key] = []

    def compose(self) -> ComposeResult:
        """The same layout as the comparison."""
        yield SummaryFrame()
        yield TableFrame()
        yield Static("", id="about", markup=False)
        yield PlotFrame(id="plot")
        yield KeyLine()

    def on_mount(self) -> None:
        """Paint first, then load."""
        table = self.query_one(TableFrame)
        table.chosen = self.columns
        table.focus()
        self.query_one(SummaryFrame).wait_for(self.launch.reference, self.launch.candidate)
        self.call_after_refresh(self.run_worker, self._load, "load", "load", thread=True, exit_on_error=False)

    def _load(self) -> Request:
        """In a thread: load what takes long, so that the app finds it loaded."""
        with heap_frozen():
            import tensordiff.tui.comparison.screen  # noqa: F401

            return self.launch.request()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Go on to the comparison, or report that it could not be loaded."""
        if event.state is WorkerState.SUCCESS and event.worker.result is not None:
            self.post_message(self.Loaded(event.worker.result, self.typed))
        elif event.state is WorkerState.ERROR and event.worker.error is not None:
            self.post_message(CouldNotOpen(sentence_of(event.worker.error)))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual calls with it
        """Grey the same keys as the comparison."""
        return None if action in NEEDS_DUMPS | _NEEDS_RUN else True

    def on_key(self, event: Key) -> None:
        """Keep every key for the comparison, except keys that leave; going back drops none of the waiting keys."""
        found = self.active_bindings.get(event.key)
        action = found.binding.action if found is not None else ""
        if action not in _LEAVES or (action == "back" and self.typed):
            self.typed.append(event)
            event.stop()
