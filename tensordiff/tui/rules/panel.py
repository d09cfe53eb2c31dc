"""The rules panel: how names are paired, what is left over, and what that may be.

It edits a ``RuleBook`` and realigns in a thread; whoever mounts it hears ``Aligned`` with the new session,
and tells it of a session that changed elsewhere with ``show_session``. What the keys of rules do is in
``ruling``, those of orphans in ``pairing``, of suggestions in ``suggesting``. Nothing here measures the table's rows or
writes a session file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input, Static
from textual.worker import Worker, WorkerState, get_current_worker

from tensordiff.align.rule_usage import RuleUsage
from tensordiff.align.rules.rule_book import RuleBook
from tensordiff.errors import TensordiffError, printable
from tensordiff.session.session import Session
from tensordiff.tui.line_list import LineList
from tensordiff.tui.rules.editing import Ruling
from tensordiff.tui.rules.orphan_list import OrphanList, SuggestionList
from tensordiff.tui.rules.pairing import Pairing
from tensordiff.tui.rules.rule_list import RuleList
from tensordiff.util.garbage_collector import heap_frozen


class RulesPanel(Ruling, Pairing, Vertical):
    """Rules, orphans and suggestions."""

    DEFAULT_CSS = """
    RulesPanel {
        background: $surface;
        & > .heading { height: 1; background: $panel; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
        & > #counts { text-style: bold; }
        & > RuleList { height: 3fr; min-height: 3; }
        & > OrphanList { height: 2fr; min-height: 3; }
        & > SuggestionList { height: 1fr; min-height: 2; }
        & > #orphan-filter { display: none; }
        & > #orphan-filter.-shown { display: block; }
        & > #about { height: 4; border-top: solid $panel; padding: 0 1; color: $text-muted; }
    }
    """

    @dataclass
    class Aligned(Message):
        """The dumps are aligned anew."""

        session: Session

    @dataclass
    class Written(Message):
        """The rules are in a file."""

        session: Session
        path: Path

    @dataclass
    class _Realigned(Message):
        """From the thread."""

        session: Session
        hits: RuleUsage

    def __init__(self, session: Session, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.session = session
        self.book = _book(session)
        self.hits = None

    def compose(self) -> ComposeResult:
        """Counts, rules; orphans; suggestions; a few lines on what is under the cursor."""
        yield Static("", id="counts", classes="heading", markup=False)
        yield RuleList(id="rules")
        yield Static("", id="orphans-heading", classes="heading", markup=False)
        yield Input("", id="orphan-filter", placeholder="names that match; ! inverts; esc shows all", compact=True)
        yield OrphanList(id="orphans")
        yield Static("", id="suggestions-heading", classes="heading", markup=False)
        yield SuggestionList(id="suggestions")
        yield Static("", id="about", markup=False)

    def on_mount(self) -> None:
        """Show what there is; what each rule does is counted in a thread."""
        self.show_all()
        self.call_after_refresh(self._count, self.session)

    def focus_list(self) -> None:
        """Give the keys to the list that had them last, or to the rules."""
        self.rules.focus()

    # --- the session -----------------------------------------------------------------------------

    def show_session(self, session: Session) -> None:
        """A session that changed elsewhere; edits can be undone as long as it says what the book says.

        Where the pairs are the same, so is all that was found out about them, and edits may still be being aligned.
        """
        if session.alignment is self.session.alignment:
            self.session = session
            self.show_all()
            return
        if session.rules != self.book.rules:
            self.book = _book(session)
        self.session, self.hits = session, None
        self.forget_suggestions()
        self.show_all()
        self._count(session)

    def show_all(self) -> None:
        """Show the session and the book as they are."""
        self.rules.show_book(self.book, self.hits)
        self.orphans.show_alignment(self.session.alignment)
        self._show_counts()
        self.show_orphan_heading()
        self.show_suggestions()

    def _show_counts(self, *, is_aligning: bool = False) -> None:
        alignment = self.session.alignment
        ours, theirs = len(alignment.reference_orphans), len(alignment.candidate_orphans)
        text = Text(f"{len(alignment.pairs)} paired · {ours} + {theirs} orphans")
        if not self.book.is_saved:
            text.append(" · not written", "italic")
        if is_aligning:
            text.append(" · aligning…")
        self.query_one("#counts", Static).update(text, layout=False)

    def turn_to(self, book: RuleBook) -> None:
        """Hold another book, and align anew."""
        self.book, self.hits = book, None
        self.rules.show_book(book, None)
        self._show_counts(is_aligning=True)
        self._align(self.session, book)

    # Described, or Textual would spell out the whole session.
    @work(thread=True, exclusive=True, group="align", description="align", exit_on_error=False)
    def _count(self, session: Session) -> None:
        with heap_frozen():
            hits = session.dumps.rule_usage()
        self._tell(session, hits)

    @work(thread=True, exclusive=True, group="align", description="align", exit_on_error=False)
    def _align(self, session: Session, book: RuleBook) -> None:
        with heap_frozen():
            session = session.realigned(book.rules)
            hits = session.dumps.rule_usage()
        self._tell(session, hits)

    def _tell(self, session: Session, hits: RuleUsage) -> None:
        """What each rule does, back to the event loop if anybody still wants to know."""
        if not get_current_worker().is_cancelled:
            self.post_message(self._Realigned(session, hits))

    @on(_Realigned)
    def _take_aligned(self, event: _Realigned) -> None:
        event.stop()
        is_new = event.session.alignment is not self.session.alignment
        self.session, self.hits = event.session.with_settings_of(self.session), event.hits
        if is_new:
            self.forget_suggestions()
        self.show_all()
        if is_new:
            self.post_message(self.Aligned(self.session))

    def tell_written(self, path: Path) -> None:
        """Tell whoever mounted the panel."""
        self.post_message(self.Written(self.session, path))

    # --- what goes wrong -------------------------------------------------------------------------

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """A thread that failed is a sentence."""
        if event.state == WorkerState.ERROR:
            event.stop()
            self.complain(event.worker.error)
            self._show_counts()

    def complain(self, error: BaseException | None) -> None:
        """Say what went wrong."""
        known = isinstance(error, TensordiffError)
        sentence = str(error) if known else f"a defect of tensordiff ({type(error).__name__}: {error})"
        self.notify("\n".join(map(printable, sentence.split("\n"))), severity="error", markup=False, timeout=10)

    # --- what is under the cursor ----------------------------------------------------------------

    def show_about(self, text: str) -> None:
        """A few lines on what is under the cursor."""
        self.query_one("#about", Static).update(Text(text), layout=False)

    def on_descendant_focus(self) -> None:
        """Speak of what is under the cursor of the list that has the keys now."""
        for one in self.query(LineList):
            if one.has_focus:
                one.move(one.cursor)
                self.look_by_value(one)


def _book(session: Session) -> RuleBook:
    return RuleBook(session.rules, session.dumps.preset_rules, session.saved_rules)
