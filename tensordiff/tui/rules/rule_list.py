"""The list of rules, maps and views: each on one line, with whether it is on, its effect and its source."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType

from tensordiff.align.learn import Learned, LearnedRule
from tensordiff.align.rule_usage import RuleUsage
from tensordiff.align.rules.rule import Rule
from tensordiff.align.rules.rule_book import AnyRule, Line, RuleBook
from tensordiff.align.rules.tables import MapRule
from tensordiff.errors import printable
from tensordiff.tui.keys import bindings
from tensordiff.tui.line_list import LineList, Span
from tensordiff.tui.text import fit, right

_SIDES = {"reference": "ref", "candidate": "cand", "both": "both"}
_SOURCE, _HITS = 10, 6


class RuleList(LineList[Line]):
    """All rules, maps and views, in the order they are tried."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("rules")
    BINDING_GROUP_TITLE = "Rules"
    nothing = "no rule: a adds one"
    HELP = "Rules rewrite names in order, maps beat rules, views reconcile shapes. See docs/rules.md."

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.book: RuleBook | None = None
        self.hits: RuleUsage | None = None
        self.learned: tuple[LearnedRule, ...] = ()

    def show_book(self, book: RuleBook, hits: RuleUsage | None, learned: Learned | None = None) -> None:
        """Show the user's rules, the learned ones, and the presets'; without ``hits``, their effect is unknown."""
        self.book, self.hits = book, hits
        self.learned = () if learned is None else learned.rules
        maps = (Line(rule.map, k, is_own=False, is_learned=True) for k, rule in enumerate(self.learned))
        presets = next((k for k, line in enumerate(book.lines) if not line.is_own), len(book.lines))
        self.show_items((*book.lines[:presets], *maps, *book.lines[presets:]))

    def point_at(self, value: AnyRule) -> None:
        """Move the cursor to one of the user's own lines."""
        same = (k for k, one in enumerate(self.items) if one.is_own and one.value == value)
        self.move(next(same, self.cursor))

    def spans(self, item: Line, width: int) -> Iterable[Span]:
        """``✓ cand  ^model\\. → ·    hf   34``."""
        name = "" if item.value.on else "dim"
        yield ("✓ " if item.value.on else "○ "), "good" if item.value.on else "dim"
        source = _SOURCE if width >= 44 else 0
        rest = max(4, width - 2 - 5 - (source + 1 if source else 0) - _HITS)
        yield f"{self._tag(item):<4} ", "dim"
        yield fit(self._text(item), rest), name
        if source:
            yield f" {fit(printable(source_of(item)), source)}", "dim"
        yield right(self._count(item), _HITS), name

    def _tag(self, item: Line) -> str:
        return _SIDES[item.value.side] if isinstance(item.value, Rule) else item.kind

    def _text(self, item: Line) -> str:
        value = item.value
        if isinstance(value, Rule):
            of_class = f" ({value.module_class})" if value.module_class else ""
            return printable(f"{value.match} → {value.replace or '(nothing)'}{of_class}")
        if isinstance(value, MapRule):
            return printable(f"{value.reference} = {value.candidate}")
        views = [f"{side}: {view}" for side, view in (("ref", value.reference), ("cand", value.candidate)) if view]
        return printable(f"{value.match} {', '.join(views)}")

    def count(self, item: Line) -> int | None:
        """How many names or pairs it affects; None while unknown."""
        if item.is_learned:
            return self.learned[item.number].used
        if self.hits is None or self.book is None:
            return None
        counts = {"rule": self.hits.rules, "map": self.hits.maps, "view": self.hits.views}[item.kind]
        at = item.number if item.is_own else len(self.book.rules.rules) + item.number
        return counts[at] if at < len(counts) else None

    def _count(self, item: Line) -> str:
        count = self.count(item)
        return "…" if count is None else str(count)

    # --- what can be done ------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Whether an action is possible; None greys its key."""
        line, book = self.current, self.book
        if book is None:
            return True
        possible = {
            "edit": line is not None,
            "switch": line is not None and not line.is_learned,
            "delete": line is not None and line.is_own,
            "move": line is not None and line.is_own,
            "undo": bool(book.past),
            "redo": bool(book.future),
            "write": not book.is_saved,
        }
        return True if possible.get(action, True) else None

    def opened(self) -> None:
        """Edit the line."""
        self.action_edit()

    def action_add(self) -> None:
        """Add a rule; on a learned rule, keep all learned rules."""
        self.ask("add")

    def action_view(self) -> None:
        """Add a view."""
        self.ask("view")

    def action_edit(self) -> None:
        """Edit the line."""
        self.ask("edit")

    def action_delete(self) -> None:
        """Delete the line."""
        self.ask("delete")

    def action_switch(self) -> None:
        """Switch the line on or off."""
        self.ask("switch")

    def action_move(self, by: int) -> None:
        """Move the line, so that it is tried earlier or later."""
        self.ask("move", by)

    def action_pin(self) -> None:
        """Pin the pair that is selected in the table."""
        self.ask("pin")

    def action_undo(self) -> None:
        """Undo the last change."""
        self.ask("undo")

    def action_redo(self) -> None:
        """Redo the last undone change."""
        self.ask("redo")

    def action_write(self) -> None:
        """Write the rules to a file."""
        self.ask("write")


def source_of(item: Line) -> str:
    """The source of a line: learned, the name of a preset or a file, or ``yours``."""
    if item.is_learned:
        return "learned"
    return (item.value.source if isinstance(item.value, Rule) else "") or "yours"
