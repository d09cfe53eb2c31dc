"""The view of a comparison, saved in its session file: order, marks, columns, filter, notes, cursor and search.

The file is written in a thread, a moment after a change worth saving.
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
    """The session file of one screen. Changes before it is restored are not saved."""

    def __init__(self, screen: ComparisonScreen) -> None:
        self._screen = screen
        self._timer: Timer | None = None
        self.is_restored = False

    @property
    def _keeper(self) -> SessionKeeper:
        return self._screen.owner.keeper

    def keep(self, **changes: object) -> None:
        """Save a change, soon."""
        if self.is_restored:
            self._keeper.note(**changes)
            self.write_soon()

    def keep_cursor(self, position: int) -> None:
        """Note the cursor's position, to be saved with the next other change; by itself it is not worth a file."""
        if self.is_restored:
            cursor = key_of(self._screen.owner.listing.pairs[position])
            self._keeper.state = replace(self._keeper.state, cursor=cursor)

    def forget(self) -> None:
        """Expect another session to be restored, once the dumps are open again."""
        self.is_restored = False

    def write_soon(self) -> None:
        """Write the file, if anything changed."""
        if self._keeper.is_dirty and self._timer is None:
            self._timer = self._screen.set_timer(_WRITE_S, self._write)

    def _write(self) -> None:
        self._timer = None
        in_thread(self._screen, "keep", self._keeper.write)

    def close(self) -> None:
        """Write the last changes."""
        try:
            self._keeper.write()
        except WriteError as error:
            self._screen.log(str(error))  # reported before, when something was saved; now the screen is gone

    def restore(self) -> None:
        """Restore order, marks and cursor, and continue the search."""
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
        """Ask for a note on the layer under the cursor."""
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
