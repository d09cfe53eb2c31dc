"""The question whether to use a session file that came with the dumps; shows its full content first."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Button, Static

from tensordiff.errors import printable
from tensordiff.session.storage.session_offer import SessionOffer, contents, record_answer
from tensordiff.tui.dialogs import Dialog
from tensordiff.tui.notice import tell
from tensordiff.tui.threads import in_thread

if TYPE_CHECKING:
    from tensordiff.tui.comparison.screen import ComparisonScreen


class OfferedDialog(Dialog[bool]):
    """Shows a session file. No key with a meaning elsewhere accepts it."""

    ACCEPT, CANCEL = "Take it", "Leave it"
    DEFAULT_CSS = """
    OfferedDialog {
        & > Vertical { width: 96; }
        & VerticalScroll { height: auto; max-height: 35vh; background: $panel; padding: 0 1; }
        & .about { margin-bottom: 1; }
    }
    OfferedDialog.-short > Vertical { height: 96%; max-height: 96%; padding: 0 2; }
    OfferedDialog.-short VerticalScroll { height: 1fr; max-height: 100%; }
    """

    def __init__(self, offered: SessionOffer) -> None:
        super().__init__("A session file came with these dumps")
        self.offered = offered

    def ask(self) -> ComposeResult:
        """Where the file is, and everything in it."""
        about = (
            f"{printable(self.offered.path)}\nIt decides which tensors are compared with which, and how far apart they "
            "may be. Take it only if you trust its author; it replaces what you did with this pair before."
        )
        yield Static(about, classes="about", markup=False)
        with VerticalScroll():
            yield Static(Text(contents(self.offered.state)), markup=False)
        yield Static("arrows scroll · escape leaves the file · ctrl+s takes it", classes="hint", markup=False)

    def on_mount(self) -> None:
        """Highlight the button that leaves the file."""
        self.query_one("#accept", Button).variant = "default"
        self.query_one("#cancel", Button).variant = "primary"

    def answer(self) -> bool:
        """True; declining dismisses the dialog."""
        return True


def offer_session(screen: ComparisonScreen, offered: SessionOffer) -> None:
    """Ask once; a yes opens the dumps again with that session."""

    def take(is_wanted: bool | None) -> None:
        request = screen.owner.request
        in_thread(screen, "answer", partial(record_answer, request.reference, request.candidate, offered))
        if is_wanted:
            screen.take_session()
        else:
            tell(screen, f"left as it is; --session {_short(offered.path)} takes it")

    screen.app.push_screen(OfferedDialog(offered), take)


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
