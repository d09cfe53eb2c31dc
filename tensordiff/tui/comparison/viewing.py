"""Looking at a comparison: opening rows, faults, the tree, columns, copying, notes, filter and plot.

Half of what keys do; rules, tolerances, the search, reruns and reports are in ``diff``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from textual import on
from textual.message import Message
from textual.widgets import Static
from textual.worker import get_current_worker

from tensordiff.align.match import Pair
from tensordiff.compare.row import Row
from tensordiff.errors import printable
from tensordiff.report.json import dumps, row_json
from tensordiff.report.labels import GLYPHS
from tensordiff.session.session import Session
from tensordiff.session.state import row_name as key_of
from tensordiff.tui.comparison.comparison import Comparison
from tensordiff.tui.dialogs import Ask, Choose, GoTo, Tick
from tensordiff.tui.table.columns import COLUMNS
from tensordiff.tui.table.filter_bar import FilterBar
from tensordiff.tui.table.model import DIVERGES, Listing, Order, Pattern
from tensordiff.tui.table.run_plot import Plot
from tensordiff.tui.table.table import LayerTable
from tensordiff.tui.table.tree import Tree
from tensordiff.util.garbage_collector import heap_frozen


class Viewing(Comparison):
    """What changes nothing but what is seen."""

    @dataclass
    class _Matched(Message):
        """A filter was applied."""

        listing: Listing
        only: frozenset[int] | None

    def show_session(self, session: Session, listing: Listing) -> None:
        """The filter goes on."""
        super().show_session(session, listing)
        self.filter_again()

    @property
    def pair(self) -> Pair | None:
        """The pair under the cursor."""
        at = self.table.position
        return None if at is None else self.listing.pairs[at]

    def row_here(self) -> Row | None:
        """What was measured of it."""
        at = self.table.position
        return None if at is None else self.listing.rows[at]

    # --- the table -------------------------------------------------------------------------------

    @on(LayerTable.Highlighted)
    def _follow_cursor(self, message: LayerTable.Highlighted) -> None:
        if message.position is not None:
            self.keep_cursor(message.position)
        self.tell_about()
        self.plot_soon()

    def tell_about(self) -> None:
        """What the verdict under the cursor rests on, and what was noted there."""
        pair, row = self.pair, self.row_here()
        note = "" if pair is None else self.keeper.state.notes.get(pair.name, "")
        why = "" if row is None else f"{GLYPHS[row.verdict.name]} {row.verdict.name}: {printable(row.verdict.why)}"
        told = " · ".join(filter(None, (why, note and f"note: {printable(note)}")))
        self.query_one("#about", Static).update(told, layout=False)

    @on(LayerTable.Ordered)
    def _keep_order(self, message: LayerTable.Ordered) -> None:
        how: Order = message.order
        self.keep(sort=how.by, descending=how.descending, faults=how.faults, inputs=how.inputs)

    @on(LayerTable.Marked)
    def _keep_marks(self, message: LayerTable.Marked) -> None:
        self.keep(marks=tuple(sorted(message.marks)))

    @on(LayerTable.Opened)
    def _open_layer(self, message: LayerTable.Opened) -> None:
        row = self.listing.rows[message.position]
        if row is None:
            self.tell("this row is not measured yet", "warning")
        else:
            self.open_row(row)

    def open_row(self, row: Row) -> None:
        """Look at a row closely; the cursor follows where the user goes there."""
        from tensordiff.tui.layer.screen import LayerScreen

        if self.session is None:
            return
        rows = self.rows
        at = self._place(row, rows)
        if at is None:
            rows, at = [*rows, row], len(rows)
        faults = None if self.outcome is None else tuple(sorted(self.culprits))
        screen = LayerScreen(self.session, rows, at, self.outcome, faults)
        self.app.push_screen(screen, partial(self._come_back, rows))

    def _place(self, row: Row, rows: Sequence[Row]) -> int | None:
        """Where a row stands among those that are measured: where its pair does, if all before it are."""
        at = self.listing.positions.get(key_of(row.pair), len(rows))
        if at < len(rows) and rows[at].pair is row.pair:
            return at
        return next((k for k, one in enumerate(rows) if one.pair is row.pair), None)

    def _come_back(self, rows: Sequence[Row], at: int | None) -> None:
        if at is not None and (found := self.listing.find(rows[at].pair)) is not None:
            self.table.reveal(found)

    def action_culprit(self, way: int) -> None:
        """To the next culprit; where there is none, the next row that diverges."""
        wanted = sorted(self.culprits) or [int(at) for at in (self.listing.verdicts == DIVERGES).nonzero()[0]]
        if not wanted:
            self.tell("nothing diverges" if self.outcome else "nothing that was measured so far diverges")
            return
        here = -1 if self.table.position is None else self.table.position
        later = [at for at in wanted if at > here] if way > 0 else [at for at in reversed(wanted) if at < here]
        if not later:
            self.tell(f"there is none {'below' if way > 0 else 'above'}; there are {len(wanted)} in all")
            return
        self.table.reveal(later[0])

    def action_faults(self) -> None:
        """Only what diverges, or all."""
        self.table.show_order(self.table.how._replace(faults=not self.table.how.faults))

    def action_inputs(self) -> None:
        """Inputs too, or not."""
        self.table.show_order(self.table.how._replace(inputs=not self.table.how.inputs))

    def action_tree(self) -> None:
        """Rows by module, or one list."""
        if self.table.modules is not None:
            self.table.show_tree(None)
            return
        listing = self.listing

        def grow() -> None:
            with heap_frozen():
                tree = Tree.of([pair.name for pair in listing.pairs], listing.is_input)
            if not get_current_worker().is_cancelled:
                self.app.call_from_thread(self._show_tree, listing, tree)

        self.in_thread("tree", grow)

    def _show_tree(self, listing: Listing, tree: Tree) -> None:
        if listing is self.listing:
            self.table.show_tree(tree)

    def action_go(self) -> None:
        """To a layer by typing."""

        def reveal(at: int | None) -> None:
            if at is not None:
                self.table.reveal(at)

        self.app.push_screen(GoTo(self.listing.labels), reveal)

    def action_columns(self) -> None:
        """Choose the columns."""
        choices = [(column.id, f"{column.label:10} {column.help}") for column in COLUMNS]
        ticked = [placed.column.id for placed in self.table.placed]
        self.app.push_screen(Tick("Columns", choices, ticked), self._choose_columns)

    def _choose_columns(self, chosen: tuple[str, ...] | None) -> None:
        if chosen is not None:
            self.table.chosen = chosen or None
            self.table.place_columns()
            self.keep(columns=chosen or None)

    def action_copy(self, what: str) -> None:
        """Copy the name, or the row as JSON."""
        pair, row = self.pair, self.row_here()
        if pair is None or (what == "json" and row is None):
            self.tell("there is no measured row under the cursor", "warning")
            return
        text = pair.name if what == "name" or row is None else dumps(row_json(row))
        self.app.copy_to_clipboard(text)
        self.tell(f"copied {text:.60}")

    def action_note(self) -> None:
        """Write a note on the layer."""
        if (pair := self.pair) is None:
            return
        name, notes = pair.name, dict(self.keeper.state.notes)

        def write(text: str | None) -> None:
            if text is not None:
                notes.pop(name, None)
                self.keep(notes=notes | ({name: text} if text else {}))
                self.tell_about()

        self.app.push_screen(Ask(f"Note on {name}", notes.get(name, ""), "empty takes it off"), write)

    def action_findings(self) -> None:
        """Everything that lint has to say."""
        levels = {"error": "✗", "warning": "!", "note": "·"}
        told = [
            (str(at), f"{levels[one.level]} {one.where and one.where + ': '}{one.what}; {one.why}; {one.do}")
            for at, one in enumerate(self.findings)
        ]
        self.app.push_screen(Choose("Is the comparison fair?", told or [("", "✓ nothing doubtful was found")]))

    # --- the filter ------------------------------------------------------------------------------

    @on(FilterBar.Changed)
    def _filter(self, message: FilterBar.Changed) -> None:
        self.keep(filter=message.text)
        self._match(message.pattern)

    def filter_again(self) -> None:
        """Apply what is typed to another listing."""
        text = self.query_one(FilterBar).text
        if text:
            self._match(Pattern.parse(text))

    def _match(self, pattern: Pattern | None) -> None:
        """In a thread: a hundred thousand names and a slow expression take their time."""
        listing = self.listing

        def match() -> None:
            only = None if pattern is None else listing.matching(pattern)
            if not get_current_worker().is_cancelled:
                self.post_message(self._Matched(listing, only))

        self.in_thread("filter", match)

    @on(_Matched)
    def _show_matched(self, message: _Matched) -> None:
        if message.listing is self.listing:
            self.table.show_order(self.table.how._replace(only=message.only))

    def action_filter(self) -> None:
        """Type a filter."""
        self.query_one(FilterBar).open()

    @on(FilterBar.Left)
    def _leave_filter(self) -> None:
        self.table.focus()

    def action_plot_metric(self) -> None:
        """MSE, or rel L2."""
        self.plot_metric = "mse" if self.plot_metric == "rel_l2" else "rel_l2"
        self.plot_soon()

    @on(Plot.Pointed)
    def _point(self, message: Plot.Pointed) -> None:
        if self.listing.pairs:
            self.table.reveal(round(message.place * (len(self.listing) - 1)))

    def show_plot(self, shown: bool) -> None:
        """Show the plot or hide it, whatever the room."""
        self.query_one("#plot", Plot).styles.display = "block" if shown else "none"
        self.plot_soon()
