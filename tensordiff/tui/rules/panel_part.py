"""What the parts of the rules panel may count on: its session, its book, and what each does for the others."""

from __future__ import annotations

from collections.abc import Callable

from textual.widget import Widget

from tensordiff.align.rule_usage import RuleUsage
from tensordiff.align.rules.rule_book import RuleBook
from tensordiff.align.rules.tables import MapRule
from tensordiff.session.session import Session

Change = Callable[[RuleBook], RuleBook]


class PanelPart(Widget):
    """The panel, as its parts see it."""

    session: Session
    book: RuleBook
    hits: RuleUsage | None
    """None while a thread counts; until then names have no index to be looked up in."""

    def turn_to(self, book: RuleBook) -> None:
        """Hold another book, and align anew."""
        raise NotImplementedError

    def change(self, change: Change) -> bool:
        """Make a change and align anew; whether it could be made."""
        raise NotImplementedError

    def add_maps(self, rules: tuple[MapRule, ...]) -> None:
        """Accept maps, as one change."""
        raise NotImplementedError

    def undo(self) -> None:
        """Take back the last change."""
        raise NotImplementedError

    def complain(self, error: BaseException | None) -> None:
        """Say what went wrong."""
        raise NotImplementedError

    def show_about(self, text: str) -> None:
        """A few lines on what is under the cursor."""
        raise NotImplementedError

    def show_session(self, session: Session) -> None:
        """Show a session that changed elsewhere."""
        raise NotImplementedError
