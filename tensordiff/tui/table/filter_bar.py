"""The filter bar: a line to type a filter into, which is applied while it is typed."""

from __future__ import annotations

from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from tensordiff.errors import AlignError, printable
from tensordiff.tui.table.model import Pattern


class FilterBar(Horizontal):
    """The filter bar; hidden until it is opened, and when it is empty."""

    DEFAULT_CSS = """
    FilterBar { height: 1; display: none; background: $panel; }
    FilterBar.-shown { display: block; }
    FilterBar > Static { width: auto; padding: 0 1; color: $text-muted; }
    FilterBar > Input { border: none; height: 1; width: 1fr; padding: 0; background: $panel; }
    FilterBar > Input.-wrong { color: $text-error; }
    """

    @dataclass
    class Changed(Message):
        """The filter changed."""

        pattern: Pattern | None
        text: str

    @dataclass
    class Left(Message):
        """The filter stays; the focus returns to the table."""

    pattern: Pattern | None = None
    """The current filter; while the text is no regular expression, the one before."""

    def compose(self) -> ComposeResult:
        """A slash, the text, and what is wrong with it."""
        yield Static("/", markup=False)
        yield Input(placeholder="regular expression; ! inverts; enter keeps it, escape clears it", compact=True)
        yield Static("", id="filter-wrong", markup=False)

    @property
    def text(self) -> str:
        """The typed text."""
        return self.query_one(Input).value

    def open(self, text: str | None = None) -> None:
        """Show and focus the bar; with a text, show that without focus."""
        self.add_class("-shown")
        if text is None:
            self.screen.set_focus(self.query_one(Input))  # at once: the next key may be waiting already
        else:
            self.query_one(Input).value = text

    def clear(self) -> None:
        """Clear the filter, and hide the bar."""
        self.query_one(Input).value = ""
        self.remove_class("-shown")

    @on(Input.Changed)
    def _follow(self, event: Input.Changed) -> None:
        event.stop()
        try:
            pattern = Pattern.parse(event.value)
        except AlignError as error:
            self._say(printable(error.__cause__ or error), wrong=True)
            return
        self._say("", wrong=False)
        self.pattern = pattern
        self.post_message(self.Changed(pattern, event.value))

    def _say(self, text: str, *, wrong: bool) -> None:
        """Say what is wrong. If that is unchanged, nothing is laid out again for every character."""
        said = self.query_one("#filter-wrong", Static)
        if text != said.content:
            said.update(text)
        self.query_one(Input).set_class(wrong, "-wrong")

    @on(Input.Submitted)
    def _keep(self, event: Input.Submitted) -> None:
        event.stop()
        if not event.value:
            self.clear()
        self.post_message(self.Left())
