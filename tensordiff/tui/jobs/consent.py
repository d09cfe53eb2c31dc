"""The question before anything is run that a dump names and this user did not capture."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Input, Static

from tensordiff.errors import printable
from tensordiff.session.trust import RerunOffer
from tensordiff.tui.dialogs import Dialog


class Consent(Dialog[bool]):
    """Shows all that would be run; a yes that is spelled out agrees, and nothing else does."""

    DEFAULT_CSS = """
    Consent {
        & > Vertical { width: 110; }
        & VerticalScroll { height: auto; max-height: 40vh; margin: 1 0; }
    }
    """

    def __init__(self, offer: RerunOffer) -> None:
        super().__init__(f"{offer.what} was not captured by you here: {offer.provenance.doubt}")
        self.offer = offer

    def ask(self) -> ComposeResult:
        """What would be run, and a field for the answer."""
        yield Static("To run it again means to run", markup=False)
        with VerticalScroll():
            for line in self.offer.lines():
                yield Static(printable(line), classes="fact", markup=False)
        yield Input(placeholder="type yes to run that; escape leaves it", compact=True)

    def on_mount(self) -> None:
        """What is typed is the answer."""
        self.query_one(Input).focus()

    def answer(self) -> bool | None:
        """Agreed, where it was."""
        if self.query_one(Input).value.strip() == "yes":
            return True
        self.say("type yes to run what is shown above, or leave with escape")
        return None

    @on(Input.Submitted)
    def _take(self) -> None:
        self.action_accept()
