"""Generalize one map that a person made to all other layers.

The renaming that the map implies is tried on both dumps: how many pairs it would add beyond the map itself, whether it
would break any, and how many of the new pairs the values confirm.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tensordiff.align import Pair
from tensordiff.align.expression import Name, parse
from tensordiff.align.rules.implied import implied_rules
from tensordiff.align.rules.rule import Rule
from tensordiff.align.rules.tables import MapRule
from tensordiff.dump.names import parse_name
from tensordiff.errors import TensordiffError
from tensordiff.session.paired_dumps import PairedDumps
from tensordiff.session.session import Session

_MOST_MEASURED = 64
"""New pairs whose values are compared."""
_PairNames = tuple[str, int, int, str, int, int]


@dataclass(frozen=True)
class Lesson:
    """Rules that a map implies, and their effect."""

    rules: tuple[Rule, ...]
    pairs: tuple[Pair, ...]
    """The pairs that the rules would add, without the map's own."""
    measured: int
    confirmed: int
    """The number of measured pairs that agree."""

    @property
    def sentence(self) -> str:
        """The effect of the rules in words."""
        count = len(self.pairs)
        more = f"{count} more {'pair' if count == 1 else 'pairs'}"
        return f"{more}; the values confirm {self.confirmed} of the {self.measured} looked at"


def lesson(session: Session, given: MapRule) -> Lesson | None:
    """The rules that a map implies for other layers; None if they would add nothing."""
    names = [_layer_named(text) for text in (given.reference, given.candidate)]
    if names[0] is None or names[1] is None:
        return None
    dumps = session.dumps
    own = replace(dumps.rules, maps=tuple(dict.fromkeys((*dumps.rules.maps, given))))
    base = dumps.with_rules(own)
    best: tuple[Rule, ...] = ()
    new: tuple[Pair, ...] = ()
    for rules in implied_rules(names[0], names[1]):
        made = _added_pairs(base, rules)
        if len(made) > len(new):
            best, new = rules, made
    if not new:
        return None
    rows = list(session.comparer.rows(new[:_MOST_MEASURED]))
    return Lesson(best, new, len(rows), sum(row.verdict.name == "agrees" for row in rows))


def _layer_named(text: str) -> str | None:
    """The layer that a map names; None if it is an expression."""
    expression = parse(text.replace("{i}", "0"))
    return parse_name(expression.text).layer if isinstance(expression, Name) else None


def _added_pairs(base: PairedDumps, rules: tuple[Rule, ...]) -> tuple[Pair, ...]:
    """The pairs that rules would add; none if they would break others."""
    try:
        after = base.with_rules(replace(base.rules, rules=(*base.rules.rules, *rules)))
    except TensordiffError:
        return ()
    before = _keys(base.alignment.pairs)
    if before - _keys(after.alignment.pairs):
        return ()
    return tuple(pair for pair in after.alignment.pairs if _key(pair) not in before)


def _keys(pairs: Iterable[Pair]) -> set[_PairNames]:
    return set(map(_key, pairs))


def _key(pair: Pair) -> _PairNames:
    ours, theirs = pair.reference, pair.candidate
    return ours.name, ours.step, ours.call, theirs.name, theirs.step, theirs.call
