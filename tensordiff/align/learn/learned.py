"""What was learned: rules, each with the pairs that prove it, and the sentences about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensordiff.align.expression.placeholder import placeholders_in
from tensordiff.align.rules.tables import MapRule
from tensordiff.errors import printable

_SHOWN = 2


@dataclass(frozen=True)
class LearnedRule:
    """A learned map for all layers."""

    map: MapRule
    proof: tuple[tuple[str, str], ...]
    """The names of the pairs that values prove; empty if only structure says so."""
    beats_names: bool = False
    """Whether it holds against names: values refute what the names pair, and prove this."""
    used: int = 0
    """How many pairs it makes."""

    @property
    def overrules_a_name(self) -> bool:
        """Whether it says that a name means something else, and not only that blocks are counted differently."""
        ours, theirs = ([one.offset for one, _ in placeholders_in(t)] for t in (self.map.reference, self.map.candidate))
        return self.beats_names and ours[:1] == theirs[:1]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "reference": self.map.reference, "candidate": self.map.candidate, "used": self.used,
            "beats_names": self.beats_names, "proof": [list(pair) for pair in self.proof],
        }  # fmt: skip


@dataclass(frozen=True)
class Namesake:
    """A layer of the candidate that has the name of a layer of the reference and gives another tensor."""

    layer: str
    reference: str
    reason: str

    @property
    def sentence(self) -> str:
        """The finding in words."""
        return printable(f"{self.layer} is not compared with {self.reference}: {self.reason}")


@dataclass(frozen=True)
class Learned:
    """All that was learned about how two dumps are named."""

    rules: tuple[LearnedRule, ...] = ()
    namesakes: tuple[Namesake, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rules or self.namesakes)

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
        return replace(self, rules=tuple(rule for rule in counted if rule.used))

    @property
    def sentence(self) -> str:
        """All of it in words, on one line."""
        count = len(self.rules)
        shown = sorted(self.rules, key=lambda rule: (-rule.used, -len(rule.proof)))[:_SHOWN]
        names = ", ".join(f"{printable(r.map.candidate)} = {printable(r.map.reference)}" for r in shown)
        more = " …" if count > _SHOWN else ""
        if not count:
            return f"learned that {len(self.namesakes)} of equal name are different tensors; --no-learn"
        rules = f"learned {count} {'rule' if count == 1 else 'rules'}: {names}{more}"
        over = sum(rule.overrules_a_name for rule in self.rules)
        vetoed = f"; values overrule names in {over}" if over else ""
        proof = (
            f"proven on {self.proven} {'pair' if self.proven == 1 else 'pairs'}"
            if self.proven
            else "by structure alone"
        )
        return f"{rules}, {proof}, used for {self.used}{vetoed}; --no-learn"

    def overruled(self) -> Iterator[str]:
        """A sentence for each rule that holds against names, and for each name that means something else."""
        yield from (one.sentence for one in self.namesakes)
        for rule in self.rules:
            if rule.overrules_a_name:
                ours, theirs = printable(rule.map.reference), printable(rule.map.candidate)
                yield f"the candidate's {theirs} equals the reference's {ours}, so they are paired against their names"
