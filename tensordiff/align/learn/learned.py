"""What was learned: rules, each with the pairs that prove it, and the sentence about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensordiff.align.rules.tables import MapRule
from tensordiff.errors import printable

_SHOWN = 2


@dataclass(frozen=True)
class LearnedRule:
    """A map for all layers that was learned."""

    map: MapRule
    proof: tuple[tuple[str, str], ...]
    """The names of the pairs that values prove; none where structure alone says so."""
    beats_names: bool = False
    """Whether it holds against names: what they pair is refuted by values, and this is proven."""
    used: int = 0
    """How many pairs it makes."""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "reference": self.map.reference, "candidate": self.map.candidate, "used": self.used,
            "beats_names": self.beats_names, "proof": [list(pair) for pair in self.proof],
        }  # fmt: skip


@dataclass(frozen=True)
class Learned:
    """All that was learned about how two dumps are named."""

    rules: tuple[LearnedRule, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rules)

    @property
    def maps(self) -> tuple[MapRule, ...]:
        """The maps of the rules."""
        return tuple(rule.map for rule in self.rules)

    @property
    def proven(self) -> int:
        """How many pairs prove the rules."""
        return len({pair for rule in self.rules for pair in rule.proof})

    @property
    def used(self) -> int:
        """How many pairs the rules make."""
        return sum(rule.used for rule in self.rules)

    def with_usage(self, used: Mapping[MapRule, int]) -> Learned:
        """The rules that make pairs, with how many each makes."""
        counted = (replace(rule, used=used.get(rule.map, 0)) for rule in self.rules)
        return Learned(tuple(rule for rule in counted if rule.used))

    @property
    def sentence(self) -> str:
        """In words, for a line."""
        count = len(self.rules)
        shown = sorted(self.rules, key=lambda rule: (-rule.used, -len(rule.proof)))[:_SHOWN]
        names = ", ".join(f"{printable(r.map.candidate)} = {printable(r.map.reference)}" for r in shown)
        more = " …" if count > _SHOWN else ""
        rules = f"learned {count} {'rule' if count == 1 else 'rules'}: {names}{more}"
        over = sum(rule.beats_names for rule in self.rules)
        vetoed = f"; values overrule names in {over}" if over else ""
        return f"{rules}, proven on {self.proven} pairs, used for {self.used}{vetoed}; --no-learn"

    def overruled(self) -> Iterator[str]:
        """A sentence for each rule that holds against names."""
        for rule in self.rules:
            if rule.beats_names:
                sides = f"{printable(rule.map.candidate)} is {printable(rule.map.reference)}"
                yield f"{sides} by value, though another has its name"
