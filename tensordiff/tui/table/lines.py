"""Layers drawn line by line: only lines on the screen are formatted.

It shows a ``Listing`` in an order, with a cursor that stays on its row however rows are sorted, filtered or realigned.
Names are plain text and never parsed as markup. The actions of keys and mouse are in ``table``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual import on
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.timer import Timer

from tensordiff.report.labels import GLYPHS
from tensordiff.session.storage.state import row_name as key_of
from tensordiff.tui.table.cells import cell, flat_name, tree_name
from tensordiff.tui.table.columns import PlacedColumn
from tensordiff.tui.table.frames import TableFrame
from tensordiff.tui.table.model import VERDICTS, Listing, Order, Positions, RowKey, Suspects
from tensordiff.tui.table.tree import NOWHERE, Line, Lines, Tree
from tensordiff.tui.text import fit
from tensordiff.tui.threads import ThreadFailed, in_thread

_GLYPHS: dict[str, str] = {"pending": " "} | {str(name): glyph for name, glyph in GLYPHS.items()}
_MARK, _CULPRIT = "●", "►"
_SORTED_AT_ONCE = 50_000
"""Rows that can be sorted within a few milliseconds; more are sorted in a thread."""
_REORDER_S = 0.25
"""How often rows that are being measured are sorted again: nobody reads faster."""


class LayerLines(TableFrame):
    """Layers, one a line, and a cursor."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "layer-table--cursor", "layer-table--dim", "layer-table--mark",
        *(f"layer-table--{verdict}" for verdict in VERDICTS),
    }  # fmt: skip
    DEFAULT_CSS = """
    LayerLines {
        & > .layer-table--cursor {
            background: $block-cursor-blurred-background; color: $block-cursor-blurred-foreground;
        }
        &:focus > .layer-table--cursor {
            background: $block-cursor-background; color: $block-cursor-foreground; text-style: bold;
        }
        & > .layer-table--dim { color: $text-disabled; }
        & > .layer-table--mark { color: $accent; text-style: bold; }
        & > .layer-table--pending { color: $text-muted; }
        & > .layer-table--agrees { color: $foreground; }
        & > .layer-table--drifts { color: $text-warning; }
        & > .layer-table--diverges { color: $text-error; text-style: bold; }
        & > .layer-table--unknown { color: $text-accent; }
    }
    """

    cursor: reactive[int] = reactive(0, repaint=False)
    """The index of the line, not of the row."""

    @dataclass
    class Highlighted(Message):
        """The cursor moved to a row, or to none."""

        position: int | None

    @dataclass
    class Ordered(Message):
        """The order of the rows changed, or the selection."""

        order: Order

    @dataclass
    class _Sorted(Message):
        """A thread sorted the rows."""

        listing: Listing
        how: Order
        positions: Positions

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.listing = Listing.of(())
        self.how = Order()
        self.lines = Lines.flat(np.empty(0, np.intp))
        self.kept_count = 0
        """Rows that neither a filter nor a switch leaves out; a collapsed module may still hide some."""
        self.modules: Tree | None = None
        self.folded = np.zeros(0, np.bool_)
        """Whether each module is folded."""
        self.marks: frozenset[RowKey] = frozenset()
        self.culprits: frozenset[int] = frozenset()
        self._reorder: Timer | None = None
        self._is_sorting = self._must_sort_again = False
        self.suspects = Suspects()
        """Positions that a search still suspects; all others are dimmed. Empty if nothing is searched."""

    # --- what is shown ---------------------------------------------------------------------------

    def show_listing(self, listing: Listing) -> None:
        """Show another alignment; the cursor stays on its pair, if that still exists."""
        pair = None if (at := self.position) is None else self.listing.pairs[at]
        self.listing, self.longest = listing, listing.longest
        self.leave_tree()
        self.row_count = len(listing)
        self.how = self.how._replace(only=None)
        self.culprits, self.suspects = frozenset(), Suspects()
        if self._is_long:
            how, self.how = self.how, self.how._replace(by=None)
            self.rearrange()
            self.show_order(how)
        else:
            self.rearrange()
        self.place_columns()
        if pair is not None and (found := listing.find(pair)) is not None:
            self.go(found)

    def show_more(self, start: int, end: int) -> None:
        """Show rows that were measured. Execution order is not affected by that; any other order is."""
        if self.how.by is not None or self.how.faults:
            self._reorder = self._reorder or self.set_timer(_REORDER_S, self._show_order_again)
        elif self.modules is not None or any(start <= at < end for at in self._in_sight()):
            self.refresh()

    def _show_order_again(self) -> None:
        self._reorder = None
        self.show_order(self.how)

    def _in_sight(self) -> list[int]:
        """Positions of the rows on the screen."""
        top = self.scroll_offset.y
        return [self.line(at).row for at in range(top, min(top + self.size.height - 1, len(self.lines)))]

    def show_order(self, how: Order) -> None:
        """Show other rows, or in another order; the cursor stays on its row, or as near as possible.

        Very many rows are sorted in a thread, and keep their order until then.
        """
        self.how = how
        if not self._is_long:
            self._take_lines(None)
        elif self._is_sorting:
            self._must_sort_again = True
        else:
            self._sort_in_thread()

    @property
    def _is_long(self) -> bool:
        """Whether sorting takes longer than a key may wait."""
        return self.how.by is not None and self.modules is None and len(self.listing) > _SORTED_AT_ONCE

    def _sort_in_thread(self) -> None:
        listing, how = self.listing, self.how
        self._is_sorting, self._must_sort_again = True, False
        in_thread(self, "sort", lambda: self.post_message(self._Sorted(listing, how, listing.order(how))))

    def on_thread_failed(self, message: ThreadFailed) -> None:
        """Keep the order of rows that could not be sorted, and try the next one; the app reports the failure."""
        if message.group == "sort":
            self._is_sorting = False
            if self._must_sort_again and self._is_long:
                self._sort_in_thread()

    @on(_Sorted)
    def _show_sorted(self, message: _Sorted) -> None:
        """Show the rows in their new order, unless another one is requested by now."""
        message.stop()
        self._is_sorting = False
        if message.listing is self.listing and message.how == self.how and self._is_long:
            self._take_lines(Lines.flat(message.positions))
        else:
            self._must_sort_again = True
        if self._must_sort_again and self._is_long:
            self._sort_in_thread()

    def _take_lines(self, lines: Lines | None) -> None:
        """Show these lines or, if None, the current ones; the cursor stays on its row, or as near as possible."""
        at, line = self.position, self.cursor
        self.rearrange(lines)
        if at is None or not self.go(at):
            self.move(line)
        self.post_message(self.Ordered(self.how))

    def show_tree(self, tree: Tree | None) -> None:
        """Show rows by module or, without a tree, as one list."""
        if tree is None:
            self.leave_tree()
        elif self.modules is None:
            self.folded = tree.usual_folds.copy()
        self.modules = tree
        self.show_order(self.how._replace(by=None))

    def leave_tree(self) -> None:
        """Show no modules from now on. A thread frees them: of a million rows that takes longer than a key may wait."""
        if self.modules is not None:
            in_thread(self, "release", self.modules.release)
            self.modules = None

    def rearrange(self, lines: Lines | None = None) -> None:
        """Compute the lines again, unless they are given."""
        if self.modules is None or lines is not None:
            self.lines = Lines.flat(self.listing.order(self.how)) if lines is None else lines
            self.kept_count = len(self.lines)
        else:
            kept = self.listing.kept(self.how)
            self.lines = self.modules.lines(self.folded if self.can_fold else np.zeros_like(self.folded), kept)
            self.kept_count = int(kept.sum())
        self.line_count = len(self.lines)
        self.measure_lines()

    @property
    def can_fold(self) -> bool:
        """Whether modules can be collapsed: not if only some rows are shown, because it would hide those as well."""
        return not self.how.faults and self.how.only is None

    def on_resize(self) -> None:
        """Keep the cursor visible."""
        self.call_after_refresh(self._show_cursor)

    # --- the cursor ------------------------------------------------------------------------------

    def line(self, at: int) -> Line:
        """A line of the table."""
        return self.lines[at]

    @property
    def position(self) -> int | None:
        """The position in the listing of the row under the cursor."""
        if not 0 <= self.cursor < len(self.lines):
            return None
        row = self.line(self.cursor).row
        return None if row == NOWHERE else row

    def go(self, position: int) -> bool:
        """Move the cursor to a row; returns whether it is shown at all."""
        at = self.lines.of_row(position)
        if at is not None:
            self.move(at)
        return at is not None

    def reveal(self, position: int) -> None:
        """Move the cursor to a row, whatever hides it."""
        if self.go(position):
            return
        if self.modules is not None:
            self.folded[self.modules.around(position)] = False
            self.rearrange()
        if not self.go(position):
            by = None if self._is_long else self.how.by  # what is to be shown now cannot wait for a sort
            self.show_order(self.how._replace(by=by, faults=False, only=None, inputs=True))
            self.go(position)

    def move(self, line: int) -> None:
        """Move the cursor to a line, or the nearest one."""
        self.cursor = max(0, min(line, len(self.lines) - 1))
        self._show_cursor()
        self.refresh()
        self.post_message(self.Highlighted(self.position))

    def _show_cursor(self) -> None:
        height = max(1, self.scrollable_content_region.height - 1)
        top = round(self.scroll_y)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False)

    # --- drawing ---------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """The headings, or a row."""
        left, top = self.scroll_offset
        at = y - 1 + top
        if y == 0 or at >= len(self.lines):
            return super().render_line(y)
        style = self._line_style(at)
        return Strip(self._segments(at, style)).crop_extend(left, left + self.size.width, style)

    def arrow(self, column: str) -> str:
        """The direction of the order, beside the heading that rows are ordered by."""
        if self.how.by is None:
            return super().arrow(column)
        return "" if column != self.how.by else "▼" if self.how.descending else "▲"

    def remark(self, column: str) -> str:
        """In the heading of the names: how many rows are shown if some are left out, and which."""
        if column != "layer" or not len(self.listing):
            return ""
        which = ("faults",) * self.how.faults + ("filtered",) * (self.how.only is not None)
        which += ("outputs",) * self.listing.hides_inputs(self.how)
        if not which:
            return ""
        return f" ({self.kept_count:,} of {len(self.listing):,}: {', '.join(which)})"

    def _line_style(self, at: int) -> Style:
        line = self.line(at)
        style = self.get_component_rich_style(f"layer-table--{self._verdict(line)}")
        if self.suspects and line.row not in self.suspects:
            style = self.get_component_rich_style("layer-table--dim")
        if at == self.cursor:
            style += self.get_component_rich_style("layer-table--cursor", partial=True)
        return style

    def _verdict(self, line: Line) -> str:
        """The verdict of a line; for a folded module, the worst within."""
        if line.node != NOWHERE and self.modules and (self.is_folded(line) or line.row == NOWHERE):
            return VERDICTS[int(self.listing.verdicts[self.modules.within(line.node)].max(initial=0))]
        return VERDICTS[int(self.listing.verdicts[line.row])]

    def is_folded(self, line: Line) -> bool:
        """Whether a module's content is hidden."""
        if self.modules is None or line.node == NOWHERE or not self.can_fold:
            return False
        return bool(self.folded[line.node])

    def _segments(self, at: int, style: Style) -> list[Segment]:
        line = self.line(at)
        culprit = _CULPRIT if line.row in self.culprits else " "
        cells = [self._cell(line, placed) for placed in self.placed]
        rest = Segment(f"{culprit}{_GLYPHS[self._verdict(line)]} {' '.join(cells)} ", style)
        return [self._mark(line, style), rest]

    def _mark(self, line: Line, style: Style) -> Segment:
        is_marked = self.marks and line.row != NOWHERE and key_of(self.listing.pairs[line.row]) in self.marks
        mark = self.get_component_rich_style("layer-table--mark", partial=True)
        return Segment(_MARK if is_marked else " ", style + mark)

    def _cell(self, line: Line, placed: PlacedColumn) -> str:
        if placed.column.id == "layer":
            return fit(self._shown_name(line), placed.width)
        return " " * placed.width if line.row == NOWHERE else cell(self.listing, line.row, placed)

    def _shown_name(self, line: Line) -> str:
        if self.modules is None:
            return flat_name(self.listing, line.row, any(placed.column.id == "port" for placed in self.placed))
        pair = None if line.row == NOWHERE else self.listing.pairs[line.row]
        path = self.modules.path(line.node) if line.node != NOWHERE else pair.name if pair else ""
        return tree_name(pair, path, line.node != NOWHERE, self.is_folded(line), line.depth)
