"""The permanent parts of a comparison while they are still empty: the first frame of the app.

Nothing that compares is imported here: loading numpy and everything built on it would take longer than a user should
wait for a first frame. The filled parts are subclasses: ``Summary``, ``LayerLines``, ``Plot``.
"""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from rich.text import Text
from textual.binding import BindingType
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from tensordiff.errors import printable
from tensordiff.tui.keys import bindings
from tensordiff.tui.line_list import LineView
from tensordiff.tui.table.columns import PlacedColumn, columns_without, lay_out
from tensordiff.tui.text import fit, right


class SummaryFrame(Static):
    """Two lines at the top."""

    DEFAULT_CSS = """
    SummaryFrame {
        height: 2; padding: 0 1; background: $panel; color: $foreground; text-wrap: nowrap; text-overflow: ellipsis;
    }
    """

    def wait_for(self, reference: object, candidate: object) -> None:
        """Say what is being opened."""
        self.update(Text(f"opening {printable(reference)} and {printable(candidate)} …"))


class TableFrame(LineView):
    """The headings of the table."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("table")
    BINDING_GROUP_TITLE = "Table"
    COMPONENT_CLASSES: ClassVar[set[str]] = {"layer-table--header"}
    DEFAULT_CSS = """
    TableFrame {
        background: $surface; color: $foreground; height: 1fr;
        scrollbar-gutter: stable; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 1;
        & > .layer-table--header { background: $panel; color: $foreground; text-style: bold; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.line_count = 0
        self.longest = 0
        """Characters of the longest name."""
        self.row_count = 0
        """The number of rows, shown or not."""
        self.chosen: tuple[str, ...] | None = None
        self.missing: frozenset[str] = columns_without(())
        self.placed: list[PlacedColumn] = []

    def place_columns(self) -> None:
        """Place the columns, for another width or another choice."""
        width = self.scrollable_content_region.width or self.size.width
        self.placed = lay_out(width, self.longest + 2, self.chosen, self.missing, self.row_count)
        self.measure_lines()

    def measure_lines(self) -> None:
        """Set how far the table can be scrolled."""
        width = self.placed[-1].end if self.placed else 0
        self.virtual_size = Size(width, self.line_count + 1)
        self.refresh()

    def on_resize(self) -> None:
        """Place the columns for another width."""
        self.place_columns()

    def render_line(self, y: int) -> Strip:
        """The headings, or an empty line."""
        return self.headings() if y == 0 else Strip.blank(self.size.width, self.plain_style)

    def headings(self) -> Strip:
        """The headings, each as wide as its column."""
        style = self.get_component_rich_style("layer-table--header")
        segments = [Segment("    ", style)]
        for placed in self.placed:
            text = f"{placed.column.label}{self.arrow(placed.column.id)}{self.remark(placed.column.id)}"
            shown = right(text, placed.width) if placed.column.is_number else fit(text, placed.width)
            segments.append(Segment(f"{shown} ", style))
        left = self.scroll_offset.x
        return Strip(segments).crop_extend(left, left + self.size.width, style)

    def arrow(self, column: str) -> str:
        """An arrow beside the heading that rows are ordered by."""
        return "▲" if column == "index" else ""

    def remark(self, column: str) -> str:  # noqa: ARG002 - for subclasses that leave rows out
        """A remark in a heading."""
        return ""


class PlotFrame(Widget, can_focus=True):
    """Room for the plot."""

    DEFAULT_CSS = """
    PlotFrame { height: 14; background: $surface; color: $foreground; border-top: solid $panel; }
    PlotFrame:focus { border-top: solid $primary; }
    """

    def render(self) -> Text:
        """A message, because there is nothing to draw."""
        return Text("no error to plot yet")
