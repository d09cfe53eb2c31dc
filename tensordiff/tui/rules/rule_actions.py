"""The actions of the keys in the list of rules: adding, editing, switching, moving, pinning, undoing, writing to a
file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tensordiff.align.learn import LearnedRule
from tensordiff.align.rules.file import rules_text
from tensordiff.align.rules.rule import Rule
from tensordiff.align.rules.rule_book import AnyRule, Line, RuleBook, describe
from tensordiff.align.rules.tables import MapRule, ViewRule
from tensordiff.errors import TensordiffError, printable
from tensordiff.tui.dialogs import Ask
from tensordiff.tui.download import download
from tensordiff.tui.notice import sentence_of, tell
from tensordiff.tui.permissions import permissions_of
from tensordiff.tui.rules.map_screen import MapScreen
from tensordiff.tui.rules.preview import preview
from tensordiff.tui.rules.rule_editor import RuleEditor
from tensordiff.tui.rules.rule_list import source_of

if TYPE_CHECKING:
    from tensordiff.tui.rules.panel import RulesPanel


class RuleActions:
    """Changes the rule book of a panel."""

    def __init__(self, panel: RulesPanel) -> None:
        self._panel = panel

    def do(self, what: str, by: int) -> None:
        """Do what a key asks for."""
        panel, line = self._panel, self._panel.rules.current
        match what:
            case "add" if line is not None and line.is_learned:
                panel.keep_learned()
            case "add":
                self._edit(None, Rule("both", "", ""))
            case "view":
                self._edit(None, ViewRule(""))
            case "undo":
                panel.undo()
            case "redo":
                panel.change(RuleBook.redone)
            case "write":
                self.write()
            case "pin":
                self._pin()
            case _ if line is not None:
                self._do_with(line, what, by)

    def _do_with(self, line: Line, what: str, by: int) -> None:
        panel = self._panel
        match what:
            case "edit":
                self._edit(None if line.is_learned else line, line.value)
            case "delete":
                panel.change(lambda book: book.deleted(line))
            case "switch":
                panel.change(lambda book: book.toggled(line))
            case "move" if panel.change(lambda book: book.moved(line, by)):
                panel.rules.point_at(line.value)

    def _pin(self) -> None:
        """Keep the selected pair whatever the rules say, with a map of exactly these two entries."""
        panel, pair = self._panel, self._panel.selected
        if pair is None:
            panel.notify("no pair is selected in the table", severity="warning", markup=False)
            return
        reference = panel.session.dumps.label(pair.reference, "reference")
        candidate = panel.session.dumps.label(pair.candidate, "candidate")
        panel.add_maps((MapRule(reference, candidate, every=False),))

    def _edit(self, line: Line | None, value: AnyRule) -> None:
        if isinstance(value, MapRule):
            self._edit_map(line, value)
            return
        panel = self._panel

        def edited(book: RuleBook, made: AnyRule) -> RuleBook:
            return book.added(made) if line is None else book.changed(line, made)

        def done(made: Rule | ViewRule | None) -> None:
            if made is not None and made != value and panel.change(lambda book: edited(book, made)):
                panel.rules.point_at(made)

        session, book = panel.session, panel.book
        editor = RuleEditor(_title(line, value), value, lambda made: preview(session, edited(book, made).rules))
        panel.app.push_screen(editor, done)

    def _edit_map(self, line: Line | None, value: MapRule) -> None:
        panel = self._panel

        def done(made: MapRule | None) -> None:
            if made is not None and line is not None and made != value:
                panel.change(lambda book: book.changed(line, made))

        panel.app.push_screen(MapScreen(panel.session, value.reference, value.candidate, "Edit map"), done)

    def write(self) -> None:
        """Write to the session's rules file, or ask for a file if there is none.

        If files may not be written, use the browser.
        """
        panel, path = self._panel, self._panel.session.request.rules
        if not permissions_of(panel).writes:
            self._download()
        elif path is not None:
            panel.write(path)
        else:
            suggested = str(Path.cwd() / "rules.toml")
            hint = "Give it to compare and align with --rules. Comments in an existing file are kept."
            ask = Ask("Write the rules to which file?", suggested, hint)
            panel.app.push_screen(ask, lambda text: panel.write(Path(text)) if text else None)

    def _download(self) -> None:
        try:
            download(self._panel, "rules.toml", rules_text(self._panel.book.rules))
        except TensordiffError as error:
            tell(self._panel, sentence_of(error), "error")

    def about(self) -> str:
        """The line under the cursor, its source, and its effect."""
        rules = self._panel.rules
        if (line := rules.current) is None:
            return ""
        if line.is_learned:
            return _about_learned(line, rules.learned[line.number])
        count, kind = rules.count(line), line.kind
        does = "" if count is None else f"; {count} {'names' if kind == 'rule' else 'pairs'}"
        whose = source_of(line) if line.is_own else f"preset {source_of(line)}"
        off = "" if line.value.on else "; off"
        hint = "" if line.is_own else "; enter edits a copy in its place"
        return f"{describe(line.value)}\n{printable(whose)}{does}{off}{hint}"


def _about_learned(line: Line, rule: LearnedRule) -> str:
    """A learned rule, with its proof."""
    proof = f"proven on {len(rule.proof)}" if rule.proof else "by structure alone"
    shown = "".join(f", {printable(ours)} = {printable(theirs)}" for ours, theirs in rule.proof[:1])
    over = "; names say otherwise, and values refute them" if rule.overrules_a_name else ""
    return f"{describe(line.value)}\nlearned, {proof}{shown}; {rule.used} pairs{over}; a keeps all that was learned"


def _title(line: Line | None, value: AnyRule) -> str:
    kind = "view" if isinstance(value, ViewRule) else "rule"
    if line is None:
        return f"Add a {kind}"
    return f"Edit this {kind}" if line.is_own else f"Override this rule of the preset {source_of(line)}"
