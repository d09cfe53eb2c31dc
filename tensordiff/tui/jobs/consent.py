"""The question before anything is run that a dump names and this user did not capture."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.events import Key
from textual.widgets import Button, Input, Static

from tensordiff.errors import printable
from tensordiff.session.rerun.trust import RerunOffer
from tensordiff.tui.dialogs import Dialog

_SCROLL = {"up": -1, "down": 1, "pageup": -8, "pagedown": 8}
"""Lines that a key scrolls by."""


class Consent(Dialog[bool]):
    """Shows all that would be run; a yes that is spelled out agrees, and nothing else does."""

    ACCEPT, CANCEL = "Run it", "Leave it"
    DEFAULT_CSS = """
    Consent {
        & > Vertical { width: 110; }
        & VerticalScroll { height: auto; max-height: 40vh; margin: 1 0; }
    }
    Consent.-short > Vertical { max-height: 100%; padding: 0 2; }
    Consent.-short VerticalScroll { max-height: 30vh; margin: 0 0 1 0; }
    """

    def __init__(self, offer: RerunOffer) -> None:
        super().__init__(f"{offer.what} was not captured by you here: {offer.provenance.doubt}")
        self.offer = offer

    def ask(self) -> ComposeResult:
        """What would be run, and a field for the answer."""
        yield Static("Running it again would run", markup=False)
        with VerticalScroll():
            for line in self.offer.lines():
                yield Static(printable(line), classes="fact", markup=False)
        yield Input(placeholder="type yes to run that", compact=True)
        yield Static("arrows scroll · escape cancels", classes="hint", markup=False)

    def on_mount(self) -> None:
        """What is typed is the answer; what stands out is to leave it."""
        self.query_one("#accept", Button).variant = "default"
        self.query_one("#cancel", Button).variant = "primary"
        self.query_one(Input).focus()

    def on_key(self, event: Key) -> None:
        """All of it can be read without leaving the field, however much a manifest names."""
        if (lines := _SCROLL.get(event.key)) is not None:
            self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)
            event.stop()

    def answer(self) -> bool | None:
        """Agreed, where it was."""
        if self.query_one(Input).value.strip() == "yes":
            return True
        self.say("type yes to run what is shown above, or leave with escape")
        return None

    @on(Input.Submitted)
    def _take(self) -> None:
        self.action_accept()
