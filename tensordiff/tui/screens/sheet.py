"""What the larger forms have in common: fields, what is wrong with them, what they would do, buttons.

What was typed is tried once typing pauses. Small questions are in ``dialogs``.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from textual import on
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Button

Answer = TypeVar("Answer")
_PAUSE = 0.25
"""Seconds without typing after which it is tried."""


class Sheet(ModalScreen[Answer | None], Generic[Answer]):
    """A form in a frame."""

    DEFAULT_CSS = """
    Sheet {
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
        """Find out what the fields would do."""
        raise NotImplementedError

    def attempt_soon(self) -> None:
        """Once typing pauses."""
        if self._pause is not None:
            self._pause.stop()
        self._pause = self.set_timer(_PAUSE, self.attempt)

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        """Leave it as it was."""
        self.dismiss(None)
