"""Buttons and fields of dialogs that find their styles when they are mounted, not before.

Textual's set classes of their own while they are made, and find all their styles for each of them, to find them once
more when they are mounted.
"""

from __future__ import annotations

from textual.widget import Widget
from textual.widgets import Button, Input, RadioButton


class _StyledWhenMounted(Widget):
    """To be named after a class of Textual's: what that is called in style sheets is told by the first base."""

    def update_node_styles(self, animate: bool = True) -> None:
        """Not while it is made."""
        if self.is_attached:
            super().update_node_styles(animate)


class DialogButton(Button, _StyledWhenMounted):
    """A button."""


class Field(Input, _StyledWhenMounted):
    """A line of text."""


class Radio(RadioButton, _StyledWhenMounted):
    """A button whose dot is there when it is chosen, and not there when it is not, whatever the colours."""

    @property
    def BUTTON_INNER(self) -> str:  # type: ignore[override] # noqa: N802 - Textual's name
        """The dot."""
        return "●" if self.value else " "
