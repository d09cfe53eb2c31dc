"""The run as a picture, at the foot of the table: shown here, drawn by ``picture`` in a thread."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive

from tensordiff.tui.widgets.frames import PlotFrame

_AXIS = 7
"""About how many columns the labels of the y axis take."""


class Plot(PlotFrame):
    """The picture as it was drawn last."""

    drawn: reactive[Text | None] = reactive(None)

    @dataclass
    class Pointed(Message):
        """Somebody clicked at a place of the run."""

        place: float
        """From 0, the first layer, to 1, the last."""

    @dataclass
    class Resized(Message):
        """There is another room to draw in."""

    def render(self) -> Text:
        """What was drawn, or that nothing was."""
        return super().render() if self.drawn is None else self.drawn

    def on_resize(self) -> None:
        """It must be drawn anew."""
        self.post_message(self.Resized())

    def on_click(self, event: Click) -> None:
        """Point at a layer."""
        width = max(1, self.content_size.width - _AXIS)
        self.post_message(self.Pointed(min(1.0, max(0.0, (event.x - _AXIS) / width))))
