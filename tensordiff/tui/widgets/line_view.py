"""What every list that is drawn line by line has in common: the wheel, and the style of a plain line."""

from __future__ import annotations

from rich.style import Style
from textual import events
from textual.scroll_view import ScrollView

_WHEEL = 3


class LineView(ScrollView, can_focus=True):
    """Lines, drawn by ``render_line``."""

    _plain: Style | None = None

    def notify_style_update(self) -> None:
        """Styles have changed."""
        super().notify_style_update()
        self._plain = None

    @property
    def plain_style(self) -> Style:
        """Of a line that is nothing in particular; Textual finds ``rich_style`` anew each time it is asked."""
        if self._plain is None:
            self._plain = self.rich_style
        return self._plain

    def _scroll(self, event: events.MouseEvent, by: int) -> None:
        """Without moving the cursor."""
        self.scroll_to(y=self.scroll_y + by, animate=False)
        event.stop()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Towards the last line."""
        self._scroll(event, _WHEEL)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Towards the first."""
        self._scroll(event, -_WHEEL)
