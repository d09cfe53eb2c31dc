"""How a comparison is looked at, kept in its session file: order, marks, columns, filter, notes, cursor and search.

A file is written a moment after something worth keeping was done, in a thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from textual.timer import Timer

from tensordiff.errors import WriteError
from tensordiff.session.storage.state import row_name as key_of
from tensordiff.tui.dialogs import Ask
from tensordiff.tui.notice import tell
from tensordiff.tui.table.filter_bar import FilterBar
from tensordiff.tui.table.model import Order
from tensordiff.tui.threads import in_thread

if TYPE_CHECKING:
    from tensordiff.tui.comparison.screen import ComparisonScreen
    from tensordiff.tui.comparison.session_keeper import SessionKeeper

_WRITE_S = 0.6


class ViewState:
    """The session file of one screen. What happens before it is restored is not kept."""

    def __init__(self, screen: ComparisonScreen) -> None:
        self._screen = screen
        self._timer: Timer | None = None
        self.is_restored = False

    @property
    def _keeper(self) -> SessionKeeper:
        return self._screen.owner.keeper

    def keep(self, **changes: object) -> None:
        """Keep what was done, soon."""
        if self.is_restored:
            self._keeper.note(**changes)
            self.write_soon()

    def keep_cursor(self, position: int) -> None:
        """Where the cursor stands goes with whatever else is kept; by itself it is not worth a file."""
        if self.is_restored:
            cursor = key_of(self._screen.owner.listing.pairs[position])
            self._keeper.state = replace(self._keeper.state, cursor=cursor)

    def forget(self) -> None:
        """Another session is to be restored, once the dumps are open again."""
        self.is_restored = False

    def write_soon(self) -> None:
        """Write the file, if there is anything new."""
        if self._keeper.is_dirty and self._timer is None:
            self._timer = self._screen.set_timer(_WRITE_S, self._write)

    def _write(self) -> None:
        self._timer = None
        in_thread(self._screen, "keep", self._keeper.write)

    def close(self) -> None:
        """Write what was done last."""
        try:
            self._keeper.write()
        except WriteError as error:
            self._screen.log(str(error))  # told before, when something was kept; there is nobody to tell any more

    def restore(self) -> None:
        """Show the rows as they were left, and go on with the search."""
        self.is_restored = True
        screen, state = self._screen, self._keeper.state
        for sentence in self._keeper.sentences:
            tell(screen, sentence, "warning")
        table = screen.table
        screen.pane.show_notes(state.notes)
        table.chosen = state.columns or screen.columns
        table.marks = frozenset(state.marks)
        table.place_columns()
        if state.filter:
            screen.query_one(FilterBar).open(state.filter)
        table.show_order(Order(state.sort, state.descending, state.faults, state.inputs))
        if (at := screen.owner.listing.positions.get(state.cursor)) is not None:
            table.go(at)
        if state.bisect:
            screen.search_again(state.bisect)
        self.write_soon()

    def ask_note(self) -> None:
        """Write a note on the layer under the cursor."""
        screen, pair = self._screen, self._screen.pane.pair
        if pair is None:
            return
        name, notes = pair.name, dict(self._keeper.state.notes)

        def write(text: str | None) -> None:
            if text is not None:
                notes.pop(name, None)
                self.keep(notes=notes | ({name: text} if text else {}))
                screen.pane.show_notes(self._keeper.state.notes)

        screen.app.push_screen(Ask(f"Note on {name}", notes.get(name, ""), "leave it empty to delete the note"), write)
