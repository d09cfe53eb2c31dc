"""The middle of a comparison: the table of layers, a line on the row under the cursor, and the plot of the run.

It shows a ``Listing`` that its owner fills, and does everything that changes only the view: order, filter, tree,
columns, jumping to a row. Work that must not block the event loop (matching names, building the tree, drawing the plot)
runs in threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.geometry import Size
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Static
from textual.worker import get_current_worker

from tensordiff.align.match import Pair
from tensordiff.compare.row import Row
from tensordiff.errors import printable
from tensordiff.report.comparison_json import dumps, row_json
from tensordiff.report.labels import GLYPHS
from tensordiff.tui.dialogs import GoTo, Tick
from tensordiff.tui.notice import tell
from tensordiff.tui.table.columns import COLUMNS
from tensordiff.tui.table.model import DIVERGES, Listing, Pattern, Positions, RowNumbers, Selection, Suspects
from tensordiff.tui.table.run_plot import Plot, PlotView, painted, picture
from tensordiff.tui.table.table import LayerTable
from tensordiff.tui.table.tree import Tree
from tensordiff.tui.text import plain
from tensordiff.tui.threads import in_thread
from tensordiff.util.garbage_collector import heap_frozen

_PLOT_S, _PLOT_MEASURING_S = 0.15, 0.5
_PLOTTED_PER_S = 200_000
"""Rows that may be plotted for each second of measuring: a million take a fifth of a second of CPU time."""


class TablePane(Vertical):
    """Table, line and plot."""

    @dataclass
    class ColumnsChosen(Message):
        """The user chose columns; None means as the width allows."""

        columns: tuple[str, ...] | None

    @dataclass
    class _Matched(Message):
        """A filter was applied."""

        listing: Listing
        pattern: Pattern
        only: Selection

    @dataclass
    class _TreeGrown(Message):
        """The tree of modules is built."""

        listing: Listing
        tree: Tree

    @dataclass
    class _Drawn(Message):
        """The plot is drawn."""

        drawn: Text

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._notes: Mapping[str, str] = {}
        self._pattern: Pattern | None = None
        self.plot_metric = "rel_l2"
        self._plot_timer: Timer | None = None

    def compose(self) -> ComposeResult:
        """Table, line and plot, one below the other."""
        yield LayerTable(id="table")
        yield Static("", id="about", markup=False)
        yield Plot(id="plot")

    @property
    def table(self) -> LayerTable:
        """The table."""
        return self.query_one(LayerTable)

    @property
    def listing(self) -> Listing:
        """The table's listing."""
        return self.table.listing

    @property
    def pair(self) -> Pair | None:
        """The pair under the cursor."""
        at = self.table.position
        return None if at is None else self.listing.pairs[at]

    @property
    def row(self) -> Row | None:
        """The row under the cursor, once it is measured."""
        at = self.table.position
        return None if at is None else self.listing.rows[at]

    # --- what is shown ---------------------------------------------------------------------------

    def show_listing(self, listing: Listing, pattern: Pattern | None) -> None:
        """Show other pairs, with the same filter. The cursor stays on its pair."""
        self.table.show_listing(listing)
        if pattern is not None:
            self.filter(pattern)

    def show_columns(self, absent: Iterable[str]) -> None:
        """Leave out the columns that have no numbers."""
        self.table.missing = frozenset(absent)
        self.table.place_columns()
        self.plot_soon()

    def show_rows(self, start: int, end: int) -> None:
        """Show rows that were measured since."""
        self.table.show_more(start, end)
        self.plot_soon(max(_PLOT_MEASURING_S, len(self.listing) / _PLOTTED_PER_S))

    def show_culprits(self, culprits: frozenset[int]) -> None:
        """Mark the culprits; the text on the row under the cursor may change with them."""
        self.table.culprits = culprits
        self.table.move(self.table.cursor)

    def show_suspects(self, suspects: Suspects) -> None:
        """Dim the rows that a search does not suspect."""
        self.table.suspects = suspects
        self.table.refresh()
        self.plot_soon()

    def show_notes(self, notes: Mapping[str, str]) -> None:
        """Set the notes on layers, by canonical name."""
        self._notes = notes
        self.show_about()

    @on(LayerTable.Highlighted)
    def _follow_cursor(self) -> None:
        self.show_about()
        self.plot_soon()

    def show_about(self) -> None:
        """Show the reason of the verdict under the cursor, and the note on its layer."""
        pair, row = self.pair, self.row
        note = "" if pair is None else self._notes.get(pair.name, "")
        why = "" if row is None else f"{GLYPHS[row.verdict.name]} {row.verdict.name}: {printable(row.verdict.why)}"
        about = " · ".join(filter(None, (why, note and f"note: {printable(note)}")))
        self.query_one("#about", Static).update(about, layout=False)

    def marked_rows(self) -> list[Row]:
        """The rows that are marked and measured, in order."""
        positions = (self.listing.positions.get(key) for key in self.table.marks)
        rows = (self.listing.rows[at] for at in sorted(at for at in positions if at is not None))
        return [row for row in rows if row is not None]

    def copy(self, what: str) -> None:
        """Copy the name of the row under the cursor, or the row as JSON."""
        pair, row = self.pair, self.row
        if pair is None or (what == "json" and row is None):
            tell(self, "there is no measured row under the cursor", "warning")
            return
        text = pair.name if what == "name" or row is None else dumps(row_json(row))
        self.app.copy_to_clipboard(text)
        tell(self, f"copied {text:.60}")

    # --- which rows, and where the cursor stands -------------------------------------------------

    def reveal(self, pair: Pair) -> None:
        """Move the cursor to a pair, or to the pair that has its reference entry now."""
        if (at := self.listing.find(pair)) is not None:
            self.table.reveal(at)

    def next_fault(self, way: int, *, is_all_measured: bool) -> None:
        """Go to the next culprit or, if there is none, the next row that diverges."""
        faults: Positions = np.sort(np.fromiter(self.table.culprits, np.intp)) if self.table.culprits else (
            np.flatnonzero(self.listing.verdicts == DIVERGES))  # fmt: skip
        if not len(faults):
            tell(self, "nothing diverges" if is_all_measured else "nothing that was measured so far diverges")
            return
        here = -1 if self.table.position is None else self.table.position
        after = int(np.searchsorted(faults, here, "right" if way > 0 else "left"))
        at = after if way > 0 else after - 1
        if 0 <= at < len(faults):
            self.table.reveal(int(faults[at]))
        else:
            tell(self, f"there is none {'below' if way > 0 else 'above'}; there are {len(faults)} in all")

    def go_to_layer(self) -> None:
        """Go to a layer by typing its name."""

        def reveal(at: int | None) -> None:
            if at is not None:
                self.table.reveal(at)

        self.app.push_screen(GoTo(self.listing.labels, RowNumbers(self.listing.pairs)), reveal)

    def toggle_faults(self) -> None:
        """Show only rows that do not agree, or all."""
        self.table.show_order(self.table.how._replace(faults=not self.table.how.faults))

    def toggle_inputs(self) -> None:
        """Show inputs too, or only outputs."""
        if self.table.how.faults:
            tell(self, "among faults, inputs are always shown; f shows all rows again")
            return
        self.table.show_order(self.table.how._replace(inputs=not self.table.how.inputs))

    def filter(self, pattern: Pattern | None) -> None:
        """Show only layers that match.

        A thread does it: a hundred thousand names and a slow expression take their time.
        """
        self._pattern, listing = pattern, self.listing
        if pattern is None:
            self.workers.cancel_group(self, "filter")
            if self.table.how.only is not None:
                self.table.show_order(self.table.how._replace(only=None))
            return

        def match() -> None:
            worker = get_current_worker()
            only = listing.matching(pattern, lambda: not worker.is_cancelled)
            if only is not None and not worker.is_cancelled:
                self.post_message(self._Matched(listing, pattern, only))

        in_thread(self, "filter", match)

    @on(_Matched)
    def _show_matched(self, message: _Matched) -> None:
        message.stop()
        if message.listing is self.listing and message.pattern is self._pattern:
            self.table.show_order(self.table.how._replace(only=message.only))

    def toggle_tree(self) -> None:
        """Show rows by module, or as one list."""
        if self.table.modules is not None:
            self.table.show_tree(None)
            return
        listing = self.listing

        def grow() -> None:
            with heap_frozen():
                tree = Tree.of([pair.name for pair in listing.pairs], listing.is_input)
            if not get_current_worker().is_cancelled:
                self.post_message(self._TreeGrown(listing, tree))

        in_thread(self, "tree", grow)

    @on(_TreeGrown)
    def _show_tree(self, message: _TreeGrown) -> None:
        message.stop()
        if message.listing is self.listing:
            self.table.show_tree(message.tree)

    def choose_columns(self) -> None:
        """Ask which columns to show."""
        choices = [(column.id, f"{column.label:10} {column.help}") for column in COLUMNS]
        ticked = [placed.column.id for placed in self.table.placed]
        self.app.push_screen(Tick("Columns", choices, ticked), self._take_columns)

    def _take_columns(self, chosen: tuple[str, ...] | None) -> None:
        if chosen is not None:
            self.table.chosen = chosen or None
            self.table.place_columns()
            self.post_message(self.ColumnsChosen(chosen or None))

    # --- the plot --------------------------------------------------------------------------------

    def toggle_plot(self) -> None:
        """Show or hide the plot, whatever the room."""
        plot = self.query_one(Plot)
        plot.styles.display = "none" if plot.display else "block"
        self.plot_soon()

    def switch_plot_metric(self) -> None:
        """Plot the MSE, or rel L2."""
        self.plot_metric = "mse" if self.plot_metric == "rel_l2" else "rel_l2"
        self.plot_soon()

    def plot_soon(self, after_s: float = _PLOT_S) -> None:
        """Draw the plot again, not more often than it can be looked at."""
        if self._plot_timer is None:
            self._plot_timer = self.set_timer(after_s, self.draw_plot)

    @on(Plot.Resized)
    def _plot_in_other_room(self) -> None:
        self.plot_soon()

    def draw_plot(self) -> None:
        """Draw the plot in a thread. If one is being drawn, try later: restarted each time, it would never finish."""
        self._plot_timer = None
        plot = self.query_one(Plot)
        if any(worker.group == "plot" and worker.node is self and not worker.is_finished for worker in self.workers):
            self.plot_soon()
        elif plot.display and len(self.listing):
            in_thread(self, "plot", partial(self._draw, self.listing, self._plot_view(), plot.content_size))

    def _plot_view(self) -> PlotView:
        """What the plot shows: the run, the cursor in it, and what a search suspects."""
        table, is_light = self.table, not self.app.current_theme.dark
        return PlotView(self.plot_metric, "injected" not in table.missing, table.position, table.suspects, is_light)

    def _draw(self, listing: Listing, view: PlotView, room: Size) -> None:
        drawn = painted(picture(listing, view, max(20, room.width)), *room)
        if not get_current_worker().is_cancelled:
            self.post_message(self._Drawn(plain(drawn, self.app.no_color)))

    @on(_Drawn)
    def _show_drawn(self, message: _Drawn) -> None:
        message.stop()
        self.query_one(Plot).drawn = message.drawn

    @on(Plot.Pointed)
    def _point(self, message: Plot.Pointed) -> None:
        if self.listing.pairs:
            self.table.reveal(round(message.place * (len(self.listing) - 1)))
