"""The left side of a comparison, with the rules panel, which is created when it is first opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.containers import Vertical

from tensordiff.align.match import Pair
from tensordiff.align.rules.rule_book import RuleBook
from tensordiff.session.session import Session

if TYPE_CHECKING:
    from tensordiff.tui.rules.panel import RulesPanel


class RulesSide(Vertical):
    """The left side; hidden until it is opened. Its siblings have the class ``-beside`` while it is shown."""

    panel: RulesPanel | None = None

    @property
    def is_shown(self) -> bool:
        """Whether it is shown."""
        return self.display

    @property
    def has_keys(self) -> bool:
        """Whether it contains the focus."""
        return bool(self.query("*:focus"))

    def open(self, session: Session | None, book: RuleBook, pair: Pair | None) -> None:
        """Show the panel and focus it."""
        self._show_beside(is_shown=True)
        self.call_later(self._open, session, book, pair)

    async def _open(self, session: Session | None, book: RuleBook, pair: Pair | None) -> None:
        from tensordiff.tui.rules.panel import RulesPanel

        with self.app.batch_update():  # else the screen is painted without the panel, and once more with it
            if session is not None and self.panel is None:
                self.panel = RulesPanel(session, book)
                self.panel.selected = pair
                await self.mount(self.panel)
            if self.panel is not None and self.panel.children:  # the children are removed first when the screen closes
                self.panel.rules.focus()

    def _show_beside(self, *, is_shown: bool) -> None:
        """Show it or hide it. The styles of its siblings are computed again only in a narrow window, where it covers
        them.
        """
        self.display = is_shown
        for one in self.siblings:
            one.set_class(is_shown, "-beside", update=self.screen.has_class("-narrow"))

    def close(self) -> None:
        """Hide the panel. The focus leaves at once: a key typed ahead must not reach what is hidden."""
        self._show_beside(is_shown=False)
        self.screen.set_focus(None)

    def show(self, session: Session | None, book: RuleBook, *, is_aligning: bool) -> None:
        """Show a session and its rules in the panel, if there is one, or if it was opened before the
        session was there.
        """
        if self.panel is not None and session is not None:
            self.panel.show(session, book, is_aligning=is_aligning)
        elif self.is_shown and session is not None:
            self.call_later(self._open, session, book, None)

    def select(self, pair: Pair | None) -> None:
        """Set the pair under the table's cursor."""
        if self.panel is not None:
            self.panel.selected = pair
