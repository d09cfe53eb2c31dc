"""Two dumps, the rules that pair their entries, and what follows from the names.

Only headers are read, except by the search for suggestions, which reads tensors. The name indexes are built once per
alignment and shared by all sessions that use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tensordiff.align import Alignment, AlignmentPlan, Pair, align
from tensordiff.align.expression import Name
from tensordiff.align.index import ComputedTensor, Index, port_of
from tensordiff.align.learn import Learned, learn
from tensordiff.align.learn.rules_file import kept_rules
from tensordiff.align.maps import general, resolve_map
from tensordiff.align.rule_usage import RuleUsage, rule_usage
from tensordiff.align.rules.file import RulesFile
from tensordiff.align.rules.rule import Rule, RuleSet, Side
from tensordiff.align.rules.tables import MapRule
from tensordiff.align.suggest import Suggester, Suggestion, accept, accept_chosen, label
from tensordiff.dump import Dump, Entry
from tensordiff.errors import printable
from tensordiff.util.garbage_collector import gc_paused


@dataclass(frozen=True)
class NameIndexes:
    """The entries of two dumps by the names that rules give them; the indexes are built on first use."""

    reference: Dump
    candidate: Dump
    rules: RuleSet

    @cached_property
    def both(self) -> tuple[Index, Index]:
        """The indexes of the reference and the candidate."""
        return Index(self.reference, self.rules, "reference"), Index(self.candidate, self.rules, "candidate")

    @property
    def made(self) -> tuple[Index, ...]:
        """The indexes that were built so far."""
        return self.both if "both" in vars(self) else ()


@dataclass(frozen=True, kw_only=True)
class PairedDumps:
    """Two open dumps, and their alignment by the user's rules and the presets."""

    reference: Dump
    candidate: Dump
    rules: RulesFile
    """The user's rules in force, whether they are in a file or not."""
    plan: AlignmentPlan
    alignment: Alignment
    names: NameIndexes = field(repr=False)
    learned: Learned = field(default_factory=Learned)
    """Rules for entries that names do not pair, learned from the values."""
    learns: bool = True
    """Whether to learn such rules."""

    @classmethod
    def align(
        cls,
        reference: Dump,
        candidate: Dump,
        rules: RulesFile,
        proven_maps: tuple[MapRule, ...] = (),
        *,
        learns: bool = False,
        learned: Learned | None = None,
    ) -> PairedDumps:
        """Pair the entries of two dumps; ``proven_maps`` and learned rules pair what names leave over."""
        with gc_paused():
            plan = replace(AlignmentPlan.for_dumps(reference, candidate, rules), proven_maps=proven_maps)
            names = NameIndexes(reference, candidate, plan.rules)
            alignment = align(reference, candidate, plan)
            learned = learned or (learn(*names.both, alignment) if learns else Learned())
            if learned:
                plan = plan.with_learned(learned)
                alignment = align(reference, candidate, plan)
                learned = learned.with_usage(alignment.learned_usage)
        return cls(
            reference=reference,
            candidate=candidate,
            rules=rules,
            plan=plan,
            alignment=alignment,
            names=names,
            learned=learned,
            learns=learns,
        )

    def with_rules(self, rules: RulesFile) -> PairedDumps:
        """The same dumps, aligned by other rules."""
        return self.align(self.reference, self.candidate, rules, self.plan.proven_maps, learns=self.learns)

    def with_proven_maps(self, maps: tuple[MapRule, ...]) -> PairedDumps:
        """The same dumps and rules, plus maps that the values prove."""
        return self.align(self.reference, self.candidate, self.rules, maps, learns=self.learns)

    def with_candidate(self, candidate: Dump) -> PairedDumps:
        """The same with another run of the candidate. A rerun has no backward, so gradients are left out."""
        both = self.reference.has_gradients and self.candidate.has_gradients
        reference = self.reference.without_gradients() if both and not candidate.has_gradients else self.reference
        return self.align(reference, candidate, self.rules, self.plan.proven_maps, learns=self.learns)

    # --- names and rules -------------------------------------------------------------------------

    def label(self, entry: Entry, side: Side) -> str:
        """The name of an entry in expressions; for a computed entry, its expression."""
        if isinstance(entry.stored, ComputedTensor):
            return str(entry.stored.expression)
        return str(Name(label(self.names.both[side == "candidate"], entry)))

    def find(self, name: str, side: Side) -> Entry | None:
        """The entry that a name in an expression refers to, in the first step that has it."""
        index = self.names.both[side == "candidate"]
        return next((entry for step in index.steps if (entry := index.find(name, step))), None)

    @property
    def preset_rules(self) -> tuple[Rule, ...]:
        """The rules of the presets, all switched on."""
        return tuple(replace(rule, on=True) for rule in self.plan.rules.rules[len(self.rules.rules) :])

    def kept_rules(self) -> RulesFile:
        """The user's rules plus what was learned, as a file that makes the same pairs without learning."""
        return kept_rules(self.reference, self.candidate, self.rules, self.learned, self.alignment)

    def rule_usage(self) -> RuleUsage:
        """What each rule, map and view matches."""
        return rule_usage(self.rules, *self.names.both, self.alignment)

    def pairs_of_map(self, rule: MapRule) -> tuple[Pair, ...]:
        """The pairs that a map would make: one for each layer and step that has all its names."""
        made = resolve_map(general(rule), *self.names.both)
        return tuple(Pair(k, self.names.both[1].canonical(c), r, c, "map") for k, (r, c) in enumerate(made))

    # --- orphans ---------------------------------------------------------------------------------

    def why_orphan(self, entry: Entry, side: Side) -> str:
        """Why an entry has no partner."""
        own, other = self.names.both if side == "reference" else self.names.both[::-1]
        layer = own.canonical(entry)
        entries = other.layers.get((layer, entry.step))
        if entries is None:
            return f"no layer {printable(layer)} on the other side"
        ports = ", ".join(sorted({port_of(one.port) for one in entries}))
        return f"the layer is there, with {printable(ports)}; none of them fits in kind and shape, or is free"

    def suggestions(self, tick: Callable[[], None] = lambda: None) -> Iterator[Suggestion]:
        """Orphans that may belong together, judged by their values. ``tick`` is called often; it ends the search by
        raising."""
        return Suggester(*self.names.both, self.alignment, tick).suggestions()

    def maps_of_proven(self, suggestions: Sequence[Suggestion]) -> tuple[MapRule, ...]:
        """Maps for suggestions that need no person's decision, since the values prove them on every layer."""
        return accept(suggestions, *self.names.both)

    def maps_of_chosen(self, chosen: Iterable[Suggestion], among: Sequence[Suggestion]) -> tuple[MapRule, ...]:
        """Maps for the suggestions that a person chose, for every layer if all of ``among`` prove that."""
        return accept_chosen(chosen, among, *self.names.both)
