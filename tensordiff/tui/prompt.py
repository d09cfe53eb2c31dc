"""A line for short input at the foot of a screen: an index, a number. Escape leaves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import Input

from tensordiff.tui.keys import bindings


class Prompt(Input):
    """The input line; hidden until something is asked."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("dialog")
    DEFAULT_CSS = """
    Prompt { display: none; dock: bottom; height: 3; }
    """

    @dataclass
    class Answered(Message):
        """Valid input was typed."""

        what: str
        value: tuple[int, ...]

    @dataclass
    class Left(Message):
        """The prompt was left without input."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, select_on_focus=False)
        self.what = ""
        self.parse: Callable[[str], tuple[int, ...]] = lambda _: ()

    def begin(self, what: str, title: str, parse: Callable[[str], tuple[int, ...]], value: str = "") -> None:
        """Ask for input. ``parse`` raises ``ValueError`` with a sentence for invalid input."""
        self.what, self.parse = what, parse
        self.border_title = title
        self.border_subtitle = "enter accepts, escape leaves"
        self.value = value
        self.cursor_position = len(value)
        self.display = True
        self.screen.set_focus(self)  # at once: the next key may be waiting already

    def feed(self, event: events.Key) -> None:
        """Take a key that was typed before the prompt had the focus."""
        if event.is_printable and event.character:
            self.insert_text_at_cursor(event.character)
        elif event.key == "enter":
            self.call_later(self.action_submit)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the input, or say what is wrong with it."""
        event.stop()
        try:
            value = self.parse(self.value)
        except ValueError as error:
            self.border_title = str(error)
            return
        self.display = False
        self.post_message(self.Answered(self.what, value))

    async def action_accept(self) -> None:
        """Submit, as enter does."""
        await self.action_submit()

    def action_cancel(self) -> None:
        """Leave the prompt."""
        self.display = False
        self.post_message(self.Left())
