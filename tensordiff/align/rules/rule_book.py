"""Editing rules, as pure state: every change returns a new ``RuleBook``, which remembers the one before.

A book is what a person says (a ``RulesFile``) beside the rules of presets, which can be switched off and
overridden but not edited. Switching one off is said in the person's own words: a rule of theirs that is
off and says the same. So all of a book can be written to a rules file, and nothing else holds edits.
Nothing here aligns: what a change does to the pairs is told by ``changes`` of two alignments.
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
    """One line of a book: what it says, and where it stands."""

    value: AnyRule
    number: int
    """Its position among the person's own of its kind, or among the rules of presets."""
    is_own: bool = True

    @property
    def kind(self) -> Kind:
        """What it is one of."""
        return kind_of(self.value)


class Edit(NamedTuple):
    """What was said, and what was then done to it."""

    said: RulesFile
    done: str


@dataclass(frozen=True)
class RuleBook:
    """What a person says, what presets say, and how it came to this."""

    said: RulesFile
    presets: tuple[Rule, ...] = ()
    """As the presets have them: all on."""
    written: RulesFile = field(default_factory=RulesFile)
    """What is in the file, if there is one."""
    past: tuple[Edit, ...] = ()
    future: tuple[Edit, ...] = ()

    @property
    def is_written(self) -> bool:
        """Whether the file says all of it."""
        return self.said == self.written

    @property
    def lines(self) -> tuple[Line, ...]:
        """All of it in the order it is tried: maps, rules, views."""
        own = [Line(rule, k) for k, rule in enumerate(self.said.rules) if not self._is_shadow(rule)]
        presets = switched_off(self.presets, self.said.rules)
        return (
            *(Line(rule, k) for k, rule in enumerate(self.said.maps)),
            *own,
            *(Line(rule, k, is_own=False) for k, rule in enumerate(presets)),
            *(Line(view, k) for k, view in enumerate(self.said.views)),
        )

    def _is_shadow(self, rule: Rule) -> bool:
        """Whether it is there only to switch a preset's off, where it is shown."""
        return any(switches_off(rule, preset) for preset in self.presets)

    # --- changes ---------------------------------------------------------------------------------

    def added(self, value: AnyRule) -> RuleBook:
        """One more, the last of its kind."""
        check(value)
        values = self._values(kind_of(value))
        if value in values:
            raise AlignError(f"this {describe(value)} is there already; switch it on, or edit it")
        return self._with(kind_of(value), (*values, value), f"added {describe(value)}")

    def with_maps(self, maps: Sequence[MapRule]) -> RuleBook:
        """Maps that are not there yet, as one change."""
        new = tuple(rule for rule in dict.fromkeys(maps) if rule not in self.said.maps)
        for rule in new:
            check(rule)
        if not new:
            raise AlignError("nothing new: these maps are there already")
        done = f"added {describe(new[0])}" if len(new) == 1 else f"added {len(new)} maps"
        return self._with("map", (*self.said.maps, *new), done)

    def changed(self, line: Line, value: AnyRule) -> RuleBook:
        """Another in its place. A preset's rule is overridden: switched off, and the other one tried."""
        check(value)
        if not line.is_own:
            rules = (*self.said.rules, value, replace(line.value, on=False))
            return self._with("rule", rules, f"overrode {describe(line.value)}")
        values = self._values(line.kind)
        return self._with(
            line.kind, (*values[: line.number], value, *values[line.number + 1 :]), f"edited {describe(value)}"
        )

    def deleted(self, line: Line) -> RuleBook:
        """Without it."""
        self._own(line, "deleted")
        values = self._values(line.kind)
        rest = (*values[: line.number], *values[line.number + 1 :])
        return self._with(line.kind, rest, f"deleted {describe(line.value)}")

    def toggled(self, line: Line) -> RuleBook:
        """With it off, or on again."""
        done = f"switched {'off' if line.value.on else 'on'} {describe(line.value)}"
        value = replace(line.value, on=not line.value.on)
        if line.is_own:
            values = self._values(line.kind)
            return self._with(line.kind, (*values[: line.number], value, *values[line.number + 1 :]), done)
        preset = self.presets[line.number]
        if line.value.on:
            return self._with("rule", (*self.said.rules, value), done)
        return self._with("rule", tuple(r for r in self.said.rules if not switches_off(r, preset)), done)

    def moved(self, line: Line, by: int) -> RuleBook:
        """With it before the one before it, or behind the one behind it; itself at either end."""
        self._own(line, "moved; it comes after your own")
        peers = [other.number for other in self.lines if other.is_own and other.kind == line.kind]
        to = peers.index(line.number) + by
        if not 0 <= to < len(peers):
            return self
        values = list(self._values(line.kind))
        values[line.number], values[peers[to]] = values[peers[to]], values[line.number]
        return self._with(line.kind, tuple(values), f"moved {describe(line.value)}")

    def undone(self) -> RuleBook:
        """Before the last change."""
        if not self.past:
            raise AlignError("there is nothing to undo")
        before = self.past[-1]
        after = Edit(self.said, before.done)
        return replace(self, said=before.said, past=self.past[:-1], future=(*self.future, after))

    def redone(self) -> RuleBook:
        """After the change that was undone last."""
        if not self.future:
            raise AlignError("there is nothing to do again")
        after = self.future[-1]
        before = Edit(self.said, after.done)
        return replace(self, said=after.said, past=(*self.past, before), future=self.future[:-1])

    def write(self, path: Path) -> RuleBook:
        """Make a file say all of it, its comments kept; the rules are that file's then."""
        write_rules_file(path, self.said)
        rules = tuple(replace(rule, source=path.name) for rule in self.said.rules)
        said = replace(self.said, rules=rules)
        return replace(self, said=said, written=said)

    def _own(self, line: Line, what: str) -> None:
        if not line.is_own:
            source = line.value.source if isinstance(line.value, Rule) else ""
            raise AlignError(f"a rule of the preset {source} cannot be {what}; switch it off, or edit a copy of it")

    def _values(self, kind: Kind) -> tuple[Any, ...]:
        return tuple(getattr(self.said, _FIELDS[kind]))

    def _with(self, kind: Kind, values: Sequence[Any], done: str) -> RuleBook:
        fields: dict[str, Any] = {_FIELDS[kind]: tuple(values)}
        return replace(self, said=replace(self.said, **fields), past=(*self.past, Edit(self.said, done)), future=())


def kind_of(value: AnyRule) -> Kind:
    """What it is one of."""
    return "map" if isinstance(value, MapRule) else "view" if isinstance(value, ViewRule) else "rule"


def describe(value: AnyRule) -> str:
    """It in a few words, on one line."""
    if isinstance(value, Rule):
        return printable(f"rule {value.match} → {value.replace or '(nothing)'}")
    if isinstance(value, MapRule):
        return printable(f"map {value.reference} = {value.candidate}")
    sides = (("reference", value.reference), ("candidate", value.candidate))
    return printable(f"view {value.match}: " + ", ".join(f"{side} {view}" for side, view in sides if view))


def check(value: AnyRule) -> None:
    """Refuse what could not be applied, with a sentence that says why."""
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
        raise AlignError("a view is of one side or both; give it one, such as last_token")
    for text in views:
        check_expression(text, is_view=True)


def rebased(said: RulesFile, base: RulesFile, now: RulesFile) -> RulesFile:
    """What was said over a file that says something else by now: additions stay, deletions too."""
    if base == now:
        return said
    kinds = ("rules", "maps", "views", "tolerances")
    merged = {name: _merged(*(getattr(one, name) for one in (said, base, now))) for name in kinds}
    return replace(now, **merged)


def _merged(said: tuple[T, ...], base: tuple[T, ...], now: tuple[T, ...]) -> tuple[T, ...]:
    added = tuple(item for item in said if item not in base and item not in now)
    gone = [item for item in base if item not in said]
    return (*added, *(item for item in now if item not in gone))
