"""The table of layers: keys and mouse for the lines that ``lines`` draws.

The screen opens rows, and does everything that needs the session.
"""

from __future__ import annotations

from dataclasses import dataclass

from textual import events
from textual.geometry import Region
from textual.message import Message

from tensordiff.session.storage.state import row_name as key_of
from tensordiff.tui.table.columns import SORTABLE
from tensordiff.tui.table.lines import LayerLines
from tensordiff.tui.table.model import RowKey
from tensordiff.tui.table.tree import NOWHERE, Line


class LayerTable(LayerLines):
    """Layers, one a line."""

    @dataclass
    class Opened(Message):
        """A row was opened."""

        position: int

    @dataclass
    class Marked(Message):
        """The marks changed."""

        marks: frozenset[RowKey]

    @property
    def _page(self) -> int:
        return max(1, self.scrollable_content_region.height - 2)

    # --- what can be done ------------------------------------------------------------------------

    def action_cursor(self, by: int) -> None:
        """Move up or down."""
        self.move(self.cursor + by)

    def action_page(self, by: int) -> None:
        """Move by a page."""
        self.move(self.cursor + by * self._page)

    def action_end(self, which: int) -> None:
        """Go to the first row or the last."""
        self.move(len(self.lines) - 1 if which > 0 else 0)

    def action_sideways(self, by: int) -> None:
        """Scroll to the left or right."""
        self.scroll_to(x=self.scroll_x + 8 * by, animate=False)

    def action_open(self) -> None:
        """Open the row; a module without one is folded or unfolded."""
        if self.position is not None:
            self.post_message(self.Opened(self.position))
        elif self.cursor < len(self.lines):
            self._fold(not self.is_folded(self.line(self.cursor)))

    def action_mark(self) -> None:
        """Mark the row or remove the mark, and go to the next."""
        if (at := self.position) is not None:
            self.marks = self.marks ^ {key_of(self.listing.pairs[at])}
            self.post_message(self.Marked(self.marks))
            self.move(self.cursor + 1)

    def action_sort(self, by: int) -> None:
        """Sort by the next visible column."""
        shown = [placed.column.id for placed in self.placed if placed.column.id in SORTABLE]
        order: list[str | None] = [None, *shown]
        at = order.index(self.how.by) if self.how.by in order else 0
        self.sort_by(order[(at + by) % len(order)])

    def sort_by(self, column: str | None) -> None:
        """Sort by a column: worst first for numbers and verdicts, natural order for names."""
        self.leave_tree()
        self.show_order(self.how._replace(by=column, descending=column != "layer"))

    def action_reverse(self) -> None:
        """Reverse the order."""
        if self.how.by is not None:
            self.show_order(self.how._replace(descending=not self.how.descending))

    def action_order(self) -> None:
        """Go back to execution order."""
        self.show_order(self.how._replace(by=None))

    def action_fold(self, way: int) -> None:
        """Collapse the module under the cursor, or the one around it; or expand it."""
        self._fold(way < 0)

    def _fold(self, fold: bool) -> None:
        if self.modules is None or not len(self.lines) or not self.can_fold:
            return
        line = self.line(self.cursor)
        if line.node == NOWHERE or (fold and self.is_folded(line)):
            line = self._around(line)
        if line.node == NOWHERE:
            return
        self.folded[line.node] = fold
        self.rearrange()
        self.move(self.cursor if (at := self.lines.of_node(line.node)) is None else at)

    def _around(self, line: Line) -> Line:
        """The line of the module that contains a line."""
        at = self.lines.around(self.cursor)
        return line if at is None else self.line(at)

    # --- the mouse -------------------------------------------------------------------------------

    def on_click(self, event: events.Click) -> None:
        """Sort by a clicked heading; select a clicked row, and open it on a double click."""
        if event.y == 0:
            self._click_heading(event.x + self.scroll_offset.x)
            return
        at = event.y - 1 + self.scroll_offset.y
        if at < len(self.lines):
            self.move(at)
            if event.chain == 2:
                self.action_open()

    def _click_heading(self, x: int) -> None:
        column = next((placed.column.id for placed in self.placed if placed.x <= x <= placed.end), None)
        if column == "index":
            self.action_order()
        elif column is not None and column == self.how.by:
            self.action_reverse()
        elif column in SORTABLE:
            self.sort_by(column)

    def heading(self, column: str) -> Region:
        """Where a column's heading is drawn."""
        placed = next(one for one in self.placed if one.column.id == column)
        return Region(placed.x, 0, placed.width, 1)
