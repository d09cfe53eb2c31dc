"""Editing rules, with undo: a ``RuleBook`` is immutable, and every change returns a new one.

A book holds the user's own rules (a ``RulesFile``) beside the rules of presets, which can be switched off and
overridden but not edited. A preset's rule is switched off by a rule of the user's that is the same and is off, so all
of a book can be written to a rules file. Nothing here aligns dumps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from tensordiff.align.rules.file import RulesFile, write_rules_file
from tensordiff.align.rules.rule import Rule, check_rule, switched_off, switches_off
from tensordiff.align.rules.tables import MapRule, ViewRule, check_expression
from tensordiff.errors import AlignError, printable

AnyRule = Rule | MapRule | ViewRule
Kind = Literal["rule", "map", "view"]
_FIELDS: dict[Kind, str] = {"rule": "rules", "map": "maps", "view": "views"}
T = TypeVar("T")


class Line(NamedTuple):
    """One rule, map or view of a book, and its position."""

    value: AnyRule
    number: int
    """Its position among the user's own of its kind, or among the rules of presets."""
    is_own: bool = True
    is_learned: bool = False
    """Whether it was learned from the values and is not among the user's own yet."""

    @property
    def kind(self) -> Kind:
        """Whether it is a rule, a map or a view."""
        return kind_of(self.value)


class Edit(NamedTuple):
    """One change: the rules before it (after it, if it was undone), and what was done."""

    rules: RulesFile
    description: str


@dataclass(frozen=True)
class RuleBook:
    """The user's rules, the presets' rules, and the changes made so far."""

    rules: RulesFile
    presets: tuple[Rule, ...] = ()
    """As the presets have them, all switched on."""
    saved_rules: RulesFile = field(default_factory=RulesFile)
    """The content of the rules file, if there is one."""
    past: tuple[Edit, ...] = ()
    future: tuple[Edit, ...] = ()

    @property
    def is_saved(self) -> bool:
        """Whether the file holds all changes."""
        return self.rules == self.saved_rules

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines in the order they are tried: maps, rules, views."""
        own = [Line(rule, k) for k, rule in enumerate(self.rules.rules) if not self._is_shadow(rule)]
        presets = switched_off(self.presets, self.rules.rules)
        return (
            *(Line(rule, k) for k, rule in enumerate(self.rules.maps)),
            *own,
            *(Line(rule, k, is_own=False) for k, rule in enumerate(presets)),
            *(Line(view, k) for k, view in enumerate(self.rules.views)),
        )

    def _is_shadow(self, rule: Rule) -> bool:
        """Whether it only switches off a preset's rule, on whose line it is shown."""
        return any(switches_off(rule, preset) for preset in self.presets)

    # --- changes ---------------------------------------------------------------------------------

    def added(self, value: AnyRule) -> RuleBook:
        """Add a rule, map or view as the last of its kind."""
        check(value)
        values = self._values(kind_of(value))
        if value in values:
            raise AlignError(f"this {describe(value)} is there already; switch it on, or edit it")
        return self._with(kind_of(value), (*values, value), f"added {describe(value)}")

    def with_maps(self, maps: Sequence[MapRule]) -> RuleBook:
        """Add those of the maps that are not there yet, as one change."""
        new = tuple(rule for rule in dict.fromkeys(maps) if rule not in self.rules.maps)
        for rule in new:
            check(rule)
        if not new:
            raise AlignError("nothing new: these maps are there already")
        description = f"added {describe(new[0])}" if len(new) == 1 else f"added {len(new)} maps"
        return self._with("map", (*self.rules.maps, *new), description)

    def with_rules(self, rules: Sequence[Rule]) -> RuleBook:
        """Add those of the rules that are not there yet, as one change."""
        new = tuple(rule for rule in dict.fromkeys(rules) if rule not in self.rules.rules)
        for rule in new:
            check(rule)
        if not new:
            raise AlignError("nothing new: these rules are there already")
        description = f"added {describe(new[0])}" if len(new) == 1 else f"added {len(new)} rules"
        return self._with("rule", (*self.rules.rules, *new), description)

    def with_learned(self, kept: RulesFile) -> RuleBook:
        """Add the learned rules and maps that are not there yet, as one change."""
        rules, maps = (
            tuple(one for one in getattr(kept, kind) if one not in getattr(self.rules, kind))
            for kind in ("rules", "maps")
        )
        if not rules and not maps:
            raise AlignError("nothing new: what was learned is there already")
        wanted = replace(self.rules, rules=(*self.rules.rules, *rules), maps=(*self.rules.maps, *maps))
        counts = (("rule", len(rules)), ("map", len(maps)))
        what = " and ".join(f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in counts if count)
        edit = Edit(self.rules, f"kept {what} that {'was' if len(rules) + len(maps) == 1 else 'were'} learned")
        return replace(self, rules=wanted, past=(*self.past, edit), future=())

    def changed(self, line: Line, value: AnyRule) -> RuleBook:
        """Replace a line. A preset's rule is overridden: it is switched off and the new one is tried."""
        check(value)
        if not line.is_own:
            rules = (*self.rules.rules, value, _switched(line.value, on=False))
            return self._with("rule", rules, f"overrode {describe(line.value)}")
        values = self._values(line.kind)
        return self._with(
            line.kind, (*values[: line.number], value, *values[line.number + 1 :]), f"edited {describe(value)}"
        )

    def deleted(self, line: Line) -> RuleBook:
        """Remove a line of the user's own."""
        self._own(line, "deleted")
        values = self._values(line.kind)
        rest = (*values[: line.number], *values[line.number + 1 :])
        return self._with(line.kind, rest, f"deleted {describe(line.value)}")

    def toggled(self, line: Line) -> RuleBook:
        """Switch a line off, or on again."""
        description = f"switched {'off' if line.value.on else 'on'} {describe(line.value)}"
        value = _switched(line.value, on=not line.value.on)
        if line.is_own:
            values = self._values(line.kind)
            return self._with(line.kind, (*values[: line.number], value, *values[line.number + 1 :]), description)
        preset = self.presets[line.number]
        if line.value.on:
            return self._with("rule", (*self.rules.rules, value), description)
        return self._with("rule", tuple(r for r in self.rules.rules if not switches_off(r, preset)), description)

    def moved(self, line: Line, by: int) -> RuleBook:
        """Exchange a line with its neighbour of the same kind; unchanged at either end."""
        self._own(line, "moved; it comes after your own")
        peers = [other.number for other in self.lines if other.is_own and other.kind == line.kind]
        to = peers.index(line.number) + by
        if not 0 <= to < len(peers):
            return self
        values = list(self._values(line.kind))
        values[line.number], values[peers[to]] = values[peers[to]], values[line.number]
        return self._with(line.kind, tuple(values), f"moved {describe(line.value)}")

    def undone(self) -> RuleBook:
        """Undo the last change."""
        if not self.past:
            raise AlignError("there is nothing to undo")
        before = self.past[-1]
        after = Edit(self.rules, before.description)
        return replace(self, rules=before.rules, past=self.past[:-1], future=(*self.future, after))

    def redone(self) -> RuleBook:
        """Make the change again that was undone last."""
        if not self.future:
            raise AlignError("there is nothing to redo")
        after = self.future[-1]
        before = Edit(self.rules, after.description)
        return replace(self, rules=after.rules, past=(*self.past, before), future=self.future[:-1])

    def write(self, path: Path) -> RuleBook:
        """Write all of it to a file, whose comments are kept; that file is then the source of the rules."""
        write_rules_file(path, self.rules)
        sourced = tuple(replace(rule, source=path.name) for rule in self.rules.rules)
        rules = replace(self.rules, rules=sourced)
        return replace(self, rules=rules, saved_rules=rules)

    def _own(self, line: Line, what: str) -> None:
        if not line.is_own:
            source = line.value.source if isinstance(line.value, Rule) else ""
            raise AlignError(f"a rule of the preset {source} cannot be {what}; switch it off, or edit a copy of it")

    def _values(self, kind: Kind) -> tuple[Any, ...]:
        return tuple(getattr(self.rules, _FIELDS[kind]))

    def _with(self, kind: Kind, values: Sequence[Any], description: str) -> RuleBook:
        fields: dict[str, Any] = {_FIELDS[kind]: tuple(values)}
        return replace(
            self, rules=replace(self.rules, **fields), past=(*self.past, Edit(self.rules, description)), future=()
        )


def kind_of(value: AnyRule) -> Kind:
    """Whether it is a rule, a map or a view."""
    return "map" if isinstance(value, MapRule) else "view" if isinstance(value, ViewRule) else "rule"


def describe(value: AnyRule) -> str:
    """A rule, map or view on one line."""
    if isinstance(value, Rule):
        return printable(f"rule {value.match} → {value.replace or '(nothing)'}")
    if isinstance(value, MapRule):
        return printable(f"map {value.reference} = {value.candidate}")
    sides = (("reference", value.reference), ("candidate", value.candidate))
    return printable(f"view {value.match}: " + ", ".join(f"{side} {view}" for side, view in sides if view))


def check(value: AnyRule) -> None:
    """Raise a sentence about a rule, map or view that could not be applied."""
    if isinstance(value, Rule):
        check_rule(value)
    elif isinstance(value, MapRule):
        for text in (value.reference, value.candidate):
            check_expression(text)
    else:
        _check_view(value)


def _check_view(view: ViewRule) -> None:
    check_rule(Rule("both", view.match, ""))
    views = [text for text in (view.reference, view.candidate) if text is not None]
    if not views:
        raise AlignError("a view needs a step for one side or both, such as last_token")
    for text in views:
        check_expression(text, is_view=True)


def _switched(value: AnyRule, *, on: bool) -> AnyRule:
    """The user's own copy of a line, on or off. A copy of a preset's rule no longer counts as one of ours."""
    return replace(value, on=on, is_ours=False) if isinstance(value, Rule) else replace(value, on=on)


def rebased(edited: RulesFile, base: RulesFile, now: RulesFile) -> RulesFile:
    """Apply edits that were made to ``base`` to a file that has changed since: its additions and deletions."""
    if base == now:
        return edited
    kinds = ("rules", "maps", "views", "tolerances")
    merged = {name: _merged(*(getattr(one, name) for one in (edited, base, now))) for name in kinds}
    return replace(now, **merged)


def _merged(edited: tuple[T, ...], base: tuple[T, ...], now: tuple[T, ...]) -> tuple[T, ...]:
    added = tuple(item for item in edited if item not in base and item not in now)
    removed = [item for item in base if item not in edited]
    return (*added, *(item for item in now if item not in removed))
