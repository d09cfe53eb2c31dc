"""Dialogs in the middle of the screen. Each returns its answer, or None if it is cancelled.

A ``Dialog`` is a small question: a line of text, a choice, a layer. A ``Form`` is larger: it has several fields, and
once typing pauses it tries them and says what is wrong or what they would do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import ClassVar, Generic, TypeVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Button, Input, Label, OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import get_current_worker

from tensordiff.errors import printable
from tensordiff.tui.fields import DialogButton, Field
from tensordiff.tui.keys import bindings
from tensordiff.tui.sized_screen import SizedScreen
from tensordiff.tui.threads import in_thread

Answer = TypeVar("Answer")
_OFFERED = 50
"""The number of layers that are listed at once."""
_LOOKED_AT_ONCE = 5_000
"""The number of layers that can be searched in a few milliseconds; if they do not suffice, a thread searches the
others.
"""
_ASKED_AFTER = 2_000
"""After how many layers that thread checks whether it is still wanted."""


class Dialog(ModalScreen[Answer | None], SizedScreen[Answer | None], Generic[Answer]):
    """A dialog: escape cancels it, ctrl+s accepts."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("dialog")
    ACCEPT, CANCEL = "OK", "Cancel"
    DEFAULT_CSS = """
    Dialog {
        align: center middle;
        & > Vertical {
            width: 76; max-width: 95%; height: auto; max-height: 100%; padding: 1 2;
            background: $surface; border: round $primary;
        }
        & .title { width: 100%; text-style: bold; margin-bottom: 1; }
        & .wrong { color: $text-error; }
        & .hint { color: $text-muted; }
        & OptionList { height: auto; max-height: 50vh; }
        & Horizontal { height: auto; margin-top: 1; }
        & Button { margin-right: 2; }
        & RadioSet { width: 1fr; height: auto; }
    }
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self.heading = title

    def on_mount(self) -> None:
        """Clear notifications, which would cover the question."""
        self.app.clear_notifications()

    def compose(self) -> ComposeResult:
        """The title, the question, and two buttons."""
        with Vertical():
            yield Label(printable(self.heading), classes="title", markup=False)
            yield from self.ask()
            yield Static("", classes="wrong", id="wrong", markup=False)
            with Horizontal():
                yield DialogButton(f"{self.ACCEPT} (ctrl+s)", id="accept", variant="primary", compact=True)
                yield DialogButton(f"{self.CANCEL} (esc)", id="cancel", compact=True)

    def ask(self) -> ComposeResult:
        """The widgets of the question."""
        raise NotImplementedError

    def answer(self) -> Answer | None:
        """The answer; None if it is invalid, after saying why."""
        raise NotImplementedError

    def say(self, text: str) -> None:
        """Say what is wrong with an answer."""
        self.query_one("#wrong", Static).update(printable(text))

    @on(Button.Pressed, "#accept")
    def action_accept(self) -> None:
        """Accept the answer, if it is valid."""
        if (answer := self.answer()) is not None:
            self.dismiss(answer)

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        """Cancel."""
        self.dismiss(None)


class Ask(Dialog[str]):
    """Asks for one line of text; ``check`` returns what is wrong with it, or None."""

    def __init__(
        self, title: str, text: str = "", hint: str = "", check: Callable[[str], str | None] = lambda _: None
    ) -> None:
        super().__init__(title)
        self.text, self.hint, self.check = text, hint, check

    def ask(self) -> ComposeResult:
        """A field."""
        yield Field(self.text)
        if self.hint:
            yield Static(self.hint, classes="hint", markup=False)

    def answer(self) -> str | None:
        """The typed text, if it is valid."""
        text = self.query_one(Input).value
        if (wrong := self.check(text)) is not None:
            self.say(wrong)
            return None
        return text

    @on(Input.Submitted)
    def _take(self) -> None:
        self.action_accept()


class Choose(Dialog[str]):
    """Asks for one of a few choices, by id; ``usual`` is highlighted, and ``why`` is the reason."""

    def __init__(self, title: str, choices: Sequence[tuple[str, str]], usual: str = "", why: str = "") -> None:
        super().__init__(title)
        self.choices, self.usual, self.why = choices, usual, why

    def ask(self) -> ComposeResult:
        """The list."""
        yield OptionList(*(Option(Text(printable(text)), id=name) for name, text in self.choices))
        if self.why:
            yield Static(printable(self.why), classes="hint", markup=False)

    def on_mount(self) -> None:
        """Highlight the usual choice."""
        if self.usual:
            self.query_one(OptionList).highlighted = [name for name, _ in self.choices].index(self.usual)

    def answer(self) -> str | None:
        """The highlighted choice."""
        at = self.query_one(OptionList).highlighted
        return None if at is None else self.choices[at][0]

    @on(OptionList.OptionSelected)
    def _take(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self.choices[event.option_index][0])


class Tick(Dialog[tuple[str, ...]]):
    """Asks for any number of a few choices, by id."""

    def __init__(self, title: str, choices: Sequence[tuple[str, str]], ticked: Sequence[str]) -> None:
        super().__init__(title)
        self.choices, self.ticked = choices, set(ticked)

    def ask(self) -> ComposeResult:
        """The list."""
        yield OptionList(*(Option(self._line(name, text), id=name) for name, text in self.choices))
        yield Static("enter ticks one or unticks it; none ticked: as many as fit", classes="hint", markup=False)

    def _line(self, name: str, text: str) -> Text:
        return Text(f"{'✓' if name in self.ticked else ' '} {printable(text)}")

    @on(OptionList.OptionSelected)
    def _turn(self, event: OptionList.OptionSelected) -> None:
        name, text = self.choices[event.option_index]
        self.ticked ^= {name}
        self.query_one(OptionList).replace_option_prompt(name, self._line(name, text))

    def answer(self) -> tuple[str, ...]:
        """The ticked choices, in order."""
        return tuple(name for name, _ in self.choices if name in self.ticked)


class GoTo(Dialog[int]):
    """Asks for a layer by typing: all words must be in its name, in any order. A number also means that row."""

    @dataclass
    class _Found(Message):
        """Matching layers."""

        text: str
        found: Sequence[int]

    def __init__(self, names: Sequence[str], numbers: Sequence[int]) -> None:
        super().__init__("Go to a layer")
        self.names, self.numbers = names, numbers
        self.found: Sequence[int] = ()
        self._text = ""
        self._is_looking = self._must_accept = False

    def ask(self) -> ComposeResult:
        """A field, and the matches."""
        yield Field(placeholder="parts of its name, or the row's number; enter goes there")
        yield OptionList()

    def on_mount(self) -> None:
        """List the first layers."""
        self._look("")

    @on(Input.Changed)
    def _follow(self, event: Input.Changed) -> None:
        self._look(event.value)

    def _look(self, text: str) -> None:
        """Search for layers. Among very many a key must not wait for that, so a thread searches the rest."""
        self._text, self._must_accept = text, False
        first = self.fitting(text, range(len(self.names))[:_LOOKED_AT_ONCE])
        self._is_looking = len(first) < _OFFERED and len(self.names) > _LOOKED_AT_ONCE
        self.workers.cancel_group(self, "look")
        if self._is_looking:
            in_thread(self, "look", lambda: self._look_on(text))
        else:
            self._show(first)

    def _look_on(self, text: str) -> None:
        """In a thread: search until enough is found, or another text is typed."""
        worker = get_current_worker()
        found = self.fitting(text, range(len(self.names)), lambda: not worker.is_cancelled)
        if not worker.is_cancelled:
            self.post_message(self._Found(text, found))

    def fitting(self, text: str, among: range, is_wanted: Callable[[], bool] = lambda: True) -> list[int]:
        """The layers in a range that match a text, up to a number; those found so far if the search is no longer
        wanted.
        """
        words = text.lower().split()
        row = self._row(text.strip().removeprefix("#"))
        looked_at = takewhile(lambda at: at % _ASKED_AFTER or is_wanted(), among)
        fitting = (at for at in looked_at if _has_all(self.names[at], words) and at not in row)
        return [*row, *islice(fitting, _OFFERED)]

    def _row(self, text: str) -> list[int]:
        """The row with this number in the table."""
        if not (text.isascii() and text.isdecimal()):
            return []
        at = bisect_left(self.numbers, int(text))
        return [at] if at < len(self.numbers) and self.numbers[at] == int(text) else []

    @on(_Found)
    def _take_found(self, message: _Found) -> None:
        message.stop()
        if message.text == self._text:
            self._is_looking = False
            self._show(message.found)
            if self._must_accept:
                self.action_accept()

    def _show(self, found: Sequence[int]) -> None:
        self.found = found
        listed = self.query_one(OptionList)
        listed.clear_options()
        listed.add_options([Option(Text(f"{self.numbers[at]:>5} {self.names[at]}")) for at in self.found])
        listed.highlighted = 0 if self.found else None

    @on(Input.Submitted)
    def _take_first(self) -> None:
        self.action_accept()

    @on(Button.Pressed, "#accept")
    def action_accept(self) -> None:
        """Accept the answer, once it belongs to the typed text."""
        if self._is_looking:
            self._must_accept = True
        else:
            super().action_accept()

    @on(OptionList.OptionSelected)
    def _take(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self.found[event.option_index])

    def answer(self) -> int | None:
        """The highlighted layer."""
        at = self.query_one(OptionList).highlighted
        if at is None:
            self.say("no layer has all these words in its name, and no row this number")
            return None
        return self.found[at]


def _has_all(name: str, words: Sequence[str]) -> bool:
    lowered = name.lower()
    return all(word in lowered for word in words)


_PAUSE = 0.25
"""Seconds without typing after which the fields are tried."""


class Form(ModalScreen[Answer | None], SizedScreen[Answer | None], Generic[Answer]):
    """A form in a frame."""

    DEFAULT_CSS = """
    Form {
        align: center middle;
        & > Vertical { max-width: 98%; max-height: 98%; border: round $primary; padding: 0 1; }
        & .field { height: 1; & > Label { color: $text-muted; } & > Input { width: 1fr; } }
        & .wrong { display: none; height: auto; color: $text-error; text-wrap: nowrap; }
        & .wrong.-shown { display: block; }
        & VerticalScroll { height: 1fr; margin-top: 1; }
        & #buttons { height: auto; align-horizontal: right; & > Button { margin-left: 2; } }
    }
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self.heading = title.replace("[", r"\[")
        self._pause: Timer | None = None

    def attempt(self) -> None:
        """Try the fields."""
        raise NotImplementedError

    def attempt_soon(self) -> None:
        """Try the fields once typing pauses."""
        if self._pause is not None:
            self._pause.stop()
        self._pause = self.set_timer(_PAUSE, self.attempt)

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        """Cancel."""
        self.dismiss(None)
