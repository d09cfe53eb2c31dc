"""Rules in the rules panel: adding, editing, switching, moving, undoing, writing to a file."""

from __future__ import annotations

from pathlib import Path

from textual import on

from tensordiff.align import Pair
from tensordiff.align.rules.rule import Rule
from tensordiff.align.rules.rule_book import AnyRule, Line, RuleBook, describe
from tensordiff.align.rules.tables import MapRule, ViewRule
from tensordiff.errors import TensordiffError, printable
from tensordiff.tui.dialogs import Ask
from tensordiff.tui.line_list import LineList
from tensordiff.tui.rules.map_screen import MapScreen
from tensordiff.tui.rules.panel_part import Change, PanelPart
from tensordiff.tui.rules.preview import preview
from tensordiff.tui.rules.rule_editor import RuleEditor
from tensordiff.tui.rules.rule_list import RuleList, source_of


class Ruling(PanelPart):
    """What the rules panel does with rules."""

    selected: Pair | None = None
    """The pair under the table's cursor: what ``p`` pins."""

    @property
    def rules(self) -> RuleList:
        """The list of rules."""
        return self.query_one(RuleList)

    # --- changes ---------------------------------------------------------------------------------

    def change(self, change: Change) -> bool:
        """Make a change and align anew; whether it could be made."""
        try:
            book = change(self.book)
        except TensordiffError as error:
            self.complain(error)
            return False
        if book is not self.book:
            self.turn_to(book)
        return True

    def add_maps(self, rules: tuple[MapRule, ...]) -> None:
        """Accept maps, as one change."""
        if self.change(lambda book: book.with_maps(rules)):
            self._point_at(rules[-1])

    def _point_at(self, value: AnyRule) -> None:
        same = (k for k, one in enumerate(self.book.lines) if one.is_own and one.value == value)
        self.rules.move(next(same, self.rules.cursor))

    def pin(self, pair: Pair) -> None:
        """Keep a pair whatever the rules say: a map of exactly these two."""
        texts = (
            self.session.dumps.label(pair.reference, "reference"),
            self.session.dumps.label(pair.candidate, "candidate"),
        )
        self.add_maps((MapRule(*texts, every=False),))

    def undo(self) -> None:
        """Take back the last change."""
        last = self.book.past[-1].description if self.book.past else ""
        if self.change(RuleBook.undone):
            self.notify(f"undone: {last}", markup=False, timeout=3)

    # --- keys ------------------------------------------------------------------------------------

    @on(LineList.Asked, "#rules")
    def _do(self, event: LineList.Asked) -> None:
        event.stop()
        line = self.rules.current
        match event.what:
            case "add":
                self._edit(None, Rule("both", "", ""))
            case "view":
                self._edit(None, ViewRule(""))
            case "undo":
                self.undo()
            case "redo":
                self.change(RuleBook.redone)
            case "write":
                self._ask_where()
            case "pin":
                self._pin_selected()
            case _ if line is not None:
                self._do_line(event.what, line, event.by)

    def _do_line(self, what: str, line: Line, by: int) -> None:
        match what:
            case "edit":
                self._edit(line, line.value)
            case "delete":
                self.change(lambda book: book.deleted(line))
            case "switch":
                self.change(lambda book: book.toggled(line))
            case "move" if self.change(lambda book: book.moved(line, by)):
                self._point_at(line.value)

    def _pin_selected(self) -> None:
        if self.selected is None:
            self.notify("no pair is selected in the table", severity="warning", markup=False)
        else:
            self.pin(self.selected)

    def _edit(self, line: Line | None, value: AnyRule) -> None:
        if isinstance(value, MapRule):
            self._edit_map(line, value)
            return

        def edited(book: RuleBook, made: AnyRule) -> RuleBook:
            return book.added(made) if line is None else book.changed(line, made)

        def done(made: Rule | ViewRule | None) -> None:
            if made is not None and made != value and self.change(lambda book: edited(book, made)):
                self._point_at(made)

        session, book = self.session, self.book
        title = _title(line, value)
        self.app.push_screen(RuleEditor(title, value, lambda made: preview(session, edited(book, made).rules)), done)

    def _edit_map(self, line: Line | None, value: MapRule) -> None:
        def done(made: MapRule | None) -> None:
            if made is not None and line is not None and made != value:
                self.change(lambda book: book.changed(line, made))

        self.app.push_screen(MapScreen(self.session, value.reference, value.candidate, "Edit map"), done)

    # --- writing ---------------------------------------------------------------------------------

    def _ask_where(self) -> None:
        path = self.session.request.rules
        if path is not None:
            self._write(path)
            return
        suggested = str(self.session.candidate.path.absolute().parent / "rules.toml")
        hint = "Give it to compare and align with --rules. Comments of a file that is there are kept."
        ask = Ask("Write the rules to which file?", suggested, hint)
        self.app.push_screen(ask, lambda said: self._write(Path(said)) if said else None)

    def _write(self, path: Path) -> None:
        path = path.expanduser()
        try:
            self.book = self.book.write(path)
        except TensordiffError as error:
            self.complain(error)
            return
        is_aligned = self.session.rules == self.book.rules
        self.show_session(self.session.with_rules_file(path, self.book.rules))
        if not is_aligned:
            self.turn_to(self.book)
        self.notify(f"written to {printable(path)}", markup=False)
        self.tell_written(path)

    def tell_written(self, path: Path) -> None:
        """Tell whoever mounted the panel."""
        raise NotImplementedError

    # --- what is under the cursor ----------------------------------------------------------------

    @on(LineList.Highlighted, "#rules")
    def _about_rule(self, event: LineList.Highlighted) -> None:
        event.stop()
        if self.rules.has_focus:
            line = self.rules.current
            self.show_about(self._told(line) if line is not None else "")

    def _told(self, line: Line) -> str:
        count, kind = self.rules.count(line), line.kind
        does = "" if count is None else f"; {count} {'names' if kind == 'rule' else 'pairs'}"
        whose = source_of(line) if line.is_own else f"preset {source_of(line)}"
        off = "" if line.value.on else "; off"
        hint = "" if line.is_own else "; enter edits a copy in its place"
        return f"{describe(line.value)}\n{printable(whose)}{does}{off}{hint}"


def _title(line: Line | None, value: AnyRule) -> str:
    kind = "view" if isinstance(value, ViewRule) else "rule"
    if line is None:
        return f"Add a {kind}"
    return f"Edit this {kind}" if line.is_own else f"Override this rule of the preset {source_of(line)}"
