"""A screen that finds the styles of its widgets once while it opens.

Textual finds them when widgets are mounted, again when the screen becomes the current one, and a third time when the
screen is told the size of the terminal and gets its classes for it (``-narrow``, ``-short``), with a repaint each.
"""

from __future__ import annotations

from itertools import chain
from typing import TypeVar

from textual import on
from textual.events import ScreenResume
from textual.screen import Screen

Result = TypeVar("Result")


class SizedScreen(Screen[Result]):
    """A screen that has its classes for the terminal's size before it has any widgets."""

    _is_opened = False

    def on_compose(self) -> None:
        """Take the classes for the size."""
        app = self.app
        horizontal = app.HORIZONTAL_BREAKPOINTS if self.HORIZONTAL_BREAKPOINTS is None else self.HORIZONTAL_BREAKPOINTS
        vertical = app.VERTICAL_BREAKPOINTS if self.VERTICAL_BREAKPOINTS is None else self.VERTICAL_BREAKPOINTS
        chosen = (
            [name for least, name in sorted(steps or ()) if least <= size][-1:]
            for size, steps in zip(app.size, (horizontal, vertical), strict=True)
        )
        self.add_class(*chain.from_iterable(chosen))

    @on(ScreenResume)
    def _keep_styles(self, event: ScreenResume) -> None:
        """When it opens, all of it was mounted a moment ago."""
        event.refresh_styles = event.refresh_styles and self._is_opened
        self._is_opened = True
