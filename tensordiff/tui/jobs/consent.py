"""Asks for consent before running anything that a dump names and this user did not capture."""

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
"""The number of lines that a key scrolls."""


class Consent(Dialog[bool]):
    """Shows everything that would be run; only a typed yes agrees."""

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
        """Focus the field, and highlight the button that declines."""
        self.query_one("#accept", Button).variant = "default"
        self.query_one("#cancel", Button).variant = "primary"
        self.query_one(Input).focus()

    def on_key(self, event: Key) -> None:
        """Scroll without leaving the field, so that all of it can be read, however much a manifest names."""
        if (lines := _SCROLL.get(event.key)) is not None:
            self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)
            event.stop()

    def answer(self) -> bool | None:
        """True if the user agreed."""
        if self.query_one(Input).value.strip() == "yes":
            return True
        self.say("type yes to run what is shown above, or leave with escape")
        return None

    @on(Input.Submitted)
    def _take(self) -> None:
        self.action_accept()
