"""The rules panel: how names are paired, which entries are left over, and suggestions for them.

It shows a rule book and the session that is aligned by it. A change makes another book, which is sent away (``Edited``,
``Written``); the owner of the session aligns by it and calls ``show`` again. The session is only read here: for
previews, labels, suggestions and the lesson of a map. The actions of the keys are in ``rule_actions``,
``orphan_actions`` and ``suggestion_search``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input, Static
from textual.worker import get_current_worker

from tensordiff.align import Pair
from tensordiff.align.rule_usage import RuleUsage
from tensordiff.align.rules.file import RulesFile
from tensordiff.align.rules.rule_book import AnyRule, RuleBook
from tensordiff.align.rules.tables import MapRule
from tensordiff.errors import TensordiffError
from tensordiff.session.lesson import Lesson, lesson
from tensordiff.session.session import Session
from tensordiff.tui.line_list import LineList
from tensordiff.tui.notice import sentence_of, tell
from tensordiff.tui.rules.lesson_screen import LessonScreen
from tensordiff.tui.rules.orphan_actions import OrphanActions
from tensordiff.tui.rules.orphan_list import OrphanList, SuggestionList
from tensordiff.tui.rules.rule_actions import RuleActions
from tensordiff.tui.rules.rule_list import RuleList
from tensordiff.tui.rules.suggestion_search import MapsProven, SuggestionSearch, SuggestionsFound
from tensordiff.tui.threads import in_thread
from tensordiff.util.garbage_collector import heap_frozen


class RulesPanel(Vertical):
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
        & > #line-about { height: 4; border-top: solid $panel; padding: 0 1; color: $text-muted; }
    }
    """

    @dataclass
    class Edited(Message):
        """The rules were changed."""

        book: RuleBook

    @dataclass
    class Written(Message):
        """The rules were written to a file."""

        book: RuleBook
        path: Path

    @dataclass
    class _Counted(Message):
        """A thread counted what each rule does."""

        session: Session
        usage: RuleUsage

    @dataclass
    class _LearnedWritten(Message):
        """A thread expressed what was learned as rules and maps."""

        session: Session
        kept: RulesFile

    @dataclass
    class _LessonFound(Message):
        """A thread found what a map of the user implies."""

        rule: MapRule
        lesson: Lesson

    def __init__(self, session: Session, book: RuleBook, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.session, self.book = session, book
        self._shown_book = book
        """The book that ``show`` was given; ``book`` is ahead of it while an edit is on its way to the owner."""
        self.usage: RuleUsage | None = None
        """None while a thread counts; until then there is no index to look names up in."""
        self.selected: Pair | None = None
        """The pair under the table's cursor, which ``p`` pins."""
        self._is_aligning = False
        self._rule_actions = RuleActions(self)
        self._orphan_actions = OrphanActions(self)
        self.search = SuggestionSearch(self)

    def compose(self) -> ComposeResult:
        """Counts and rules; orphans; suggestions; a few lines on what is under the cursor."""
        yield Static("", id="counts", classes="heading", markup=False)
        yield RuleList(id="rules")
        yield Static("", id="orphans-heading", classes="heading", markup=False)
        yield Input("", id="orphan-filter", placeholder="names that match; ! inverts; esc shows all", compact=True)
        yield OrphanList(id="orphans")
        yield Static("", id="suggestions-heading", classes="heading", markup=False)
        yield SuggestionList(id="suggestions")
        yield Static("", id="line-about", markup=False)

    def on_mount(self) -> None:
        """Show everything; a thread counts what each rule does."""
        self._show_all()
        self.call_after_refresh(self._count)

    @property
    def rules(self) -> RuleList:
        """The list of rules."""
        return self.query_one(RuleList)

    @property
    def orphans(self) -> OrphanList:
        """The list of orphans."""
        return self.query_one(OrphanList)

    @property
    def suggestions(self) -> SuggestionList:
        """The list of suggestions."""
        return self.query_one(SuggestionList)

    # --- what is shown ---------------------------------------------------------------------------

    def show(self, session: Session, book: RuleBook, *, is_aligning: bool = False) -> None:
        """Show a session and its rule book; edits made here that have not reached the owner yet stay."""
        is_other = session.alignment is not self.session.alignment
        self.session, self._is_aligning = session, is_aligning
        if self.book is self._shown_book or self.book is book:
            self.book = self._shown_book = book
        if not self._can_show:
            return
        if is_other:
            self.usage = None
            self.search.forget()
        self._show_all()
        if is_other:
            self._count()

    @property
    def _can_show(self) -> bool:
        """Whether the parts exist: not before the panel is composed, and not while it is closed."""
        return self.is_mounted and bool(self.query("#line-about"))

    def _show_all(self) -> None:
        self.rules.show_book(self.book, self.usage, self.session.dumps.learned)
        self.orphans.show_alignment(self.session.alignment)
        self._show_counts()
        self._orphan_actions.show_heading()
        self.search.show()

    def _show_counts(self) -> None:
        alignment = self.session.alignment
        ours, theirs = len(alignment.reference_orphans), len(alignment.candidate_orphans)
        text = Text(f"{len(alignment.pairs)} paired · {ours} + {theirs} orphans")
        if count := len(self.session.dumps.learned.rules):
            text.append(f" · {count} learned")
        if not self.book.is_saved:
            text.append(" · not written", "italic")
        if self._is_aligning:
            text.append(" · aligning…")
        self.query_one("#counts", Static).update(text, layout=False)

    def _count(self) -> None:
        in_thread(self, "count", partial(self._run_count, self.session))

    def _run_count(self, session: Session) -> None:
        with heap_frozen():
            usage = session.dumps.rule_usage()
        if not get_current_worker().is_cancelled:
            self.post_message(self._Counted(session, usage))

    @on(_Counted)
    def _take_count(self, event: _Counted) -> None:
        event.stop()
        is_same = event.session.alignment is self.session.alignment and event.session.rules == self.book.rules
        if is_same and self._can_show:
            self.usage = event.usage
            self._show_all()

    def show_about(self, text: str) -> None:
        """Show a few lines on what is under the cursor."""
        self.query_one("#line-about", Static).update(Text(text), layout=False)

    def on_descendant_focus(self) -> None:
        """Describe the line under the cursor of the list that has the focus now."""
        for one in self.query(LineList):
            if one.has_focus:
                one.move(one.cursor)
                self.search.begin_at(one)

    # --- changes ---------------------------------------------------------------------------------

    def change(self, change: Callable[[RuleBook], RuleBook]) -> bool:
        """Make a change and send it away; returns whether it could be made."""
        try:
            book = change(self.book)
        except TensordiffError as error:
            tell(self, sentence_of(error), "error")
            return False
        if book is not self.book:
            self.book, self.usage, self._is_aligning = book, None, True
            self.rules.show_book(book, None)
            self._show_counts()
            self.post_message(self.Edited(book))
        return True

    def add_maps(self, rules: tuple[MapRule, ...]) -> None:
        """Add maps, as one change."""
        if self.change(lambda book: book.with_maps(rules)):
            self.rules.point_at(rules[-1])

    def keep_learned(self) -> None:
        """Keep what was learned, as rules if a renaming explains it.

        A thread finds these, because that aligns again.
        """
        in_thread(self, "keep", partial(self._run_keep, self.session))

    def _run_keep(self, session: Session) -> None:
        with heap_frozen():
            kept = session.dumps.kept_rules()
        if not get_current_worker().is_cancelled:
            self.post_message(self._LearnedWritten(session, kept))

    @on(_LearnedWritten)
    def _take_kept(self, event: _LearnedWritten) -> None:
        event.stop()
        if event.session.alignment is not self.session.alignment:
            return
        own = self.book.rules
        if self.change(lambda book: book.with_learned(event.kept)):
            kept: list[AnyRule] = [*event.kept.maps, *event.kept.rules]
            self.rules.point_at([one for one in kept if one not in (*own.maps, *own.rules)][-1])

    def add_map_of_person(self, rule: MapRule) -> None:
        """Add a map that the user made, and offer what it implies for other layers."""
        session = self.session
        if rule not in self.book.rules.maps:
            in_thread(self, "lesson", partial(self._run_lesson, session, rule))
        self.add_maps((rule,))

    def _run_lesson(self, session: Session, rule: MapRule) -> None:
        with heap_frozen():
            found = lesson(session, rule)
        if found is not None and not get_current_worker().is_cancelled:
            self.post_message(self._LessonFound(rule, found))

    @on(_LessonFound)
    def _offer_lesson(self, event: _LessonFound) -> None:
        event.stop()
        if event.rule in self.book.rules.maps and self.screen.is_current:
            self.app.push_screen(LessonScreen(event.lesson), partial(self._take_lesson, event.lesson))

    def _take_lesson(self, taught: Lesson, is_accepted: bool | None) -> None:
        if is_accepted and self.change(lambda book: book.with_rules(taught.rules)):
            self.rules.point_at(taught.rules[-1])

    def undo(self) -> None:
        """Undo the last change."""
        last = self.book.past[-1].description if self.book.past else ""
        if self.change(RuleBook.undone):
            self.notify(f"undone: {last}", markup=False, timeout=3)

    def write(self, path: Path) -> None:
        """Write the rules to a file."""
        path = path.expanduser()
        try:
            self.book = self.book.write(path)
        except TensordiffError as error:
            tell(self, sentence_of(error), "error")
            return
        self._show_counts()
        tell(self, f"written to {path}")
        self.post_message(self.Written(self.book, path))

    # --- keys ------------------------------------------------------------------------------------

    @on(LineList.Asked)
    def _do(self, event: LineList.Asked) -> None:
        event.stop()
        match event.list:
            case RuleList():
                self._rule_actions.do(event.what, event.by)
            case OrphanList():
                self._orphan_actions.do(event.what)
            case SuggestionList():
                self.search.do(event.what)

    def do_in_orphans(self, what: str) -> None:
        """Do what a key does in both the orphans and the suggestions."""
        match what:
            case "filter":
                self._orphan_actions.open_filter()
            case "suggest":
                self.search.toggle()
            case "accept_above":
                self.search.ask_confidence()
            case "undo":
                self.undo()
            case "write":
                self._rule_actions.write()

    @on(LineList.Highlighted)
    def _about_line(self, event: LineList.Highlighted) -> None:
        event.stop()
        if event.list.has_focus:
            match event.list:
                case RuleList():
                    self.show_about(self._rule_actions.about())
                case OrphanList():
                    self.show_about(self._orphan_actions.about())
                case SuggestionList():
                    self.show_about(self.search.about())

    @on(Input.Changed, "#orphan-filter")
    def _filter(self, event: Input.Changed) -> None:
        event.stop()
        self._orphan_actions.filter(event.value)

    @on(OrphanList.Matched)
    def _show_matched(self, event: OrphanList.Matched) -> None:
        event.stop()
        self._orphan_actions.show_heading()

    @on(Input.Submitted, "#orphan-filter")
    def _end_filter(self, event: Input.Submitted) -> None:
        event.stop()
        self._orphan_actions.close_filter()

    def on_key(self, event: events.Key) -> None:
        """Clear the filter on escape."""
        field = self.query_one("#orphan-filter", Input)
        if event.key == "escape" and field.has_focus:
            event.stop()
            event.prevent_default()
            field.value = ""
            self._orphan_actions.close_filter()

    @on(SuggestionsFound)
    def _take_suggestions(self, event: SuggestionsFound) -> None:
        event.stop()
        self.search.take(event)

    @on(MapsProven)
    def _take_maps(self, event: MapsProven) -> None:
        event.stop()
        self.add_maps(event.maps)
