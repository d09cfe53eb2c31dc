"""Writing what was learned to a rules file: rules where a renaming explains it, maps where not.

The file must give the same pairs. So its rules are tried on both dumps: a pair that is missing gets the map that was
learned, a layer that is paired wrongly is no longer renamed, and if all else fails only maps remain.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tensordiff.align.compatibility import fits_whole
from tensordiff.align.index import ComputedTensor, Index, distinct_layer_name, parts_of, port_of
from tensordiff.align.learn.learned import Learned
from tensordiff.align.learn.outline import Outline, outlines
from tensordiff.align.learn.renamings import LayerNames, Renamings
from tensordiff.align.maps import resolve_map
from tensordiff.align.match import Alignment, AlignmentPlan, Pair, align
from tensordiff.align.rules.file import RulesFile
from tensordiff.align.rules.rule import Rule, RuleSet
from tensordiff.align.rules.tables import MapRule
from tensordiff.dump.model import Dump, Entry

_ROUNDS = 5
Names = tuple[str, ...]
Key = tuple[Names, Names, int]
"""The names of the parts of both sides, and the step."""


def kept_rules(reference: Dump, candidate: Dump, own: RulesFile, learned: Learned, alignment: Alignment) -> RulesFile:
    """The user's own rules and, after them, what was learned; ``alignment`` is what both together pair."""
    return _RulesFileBuilder(reference, candidate, own, learned, alignment).rules()


@dataclass(eq=False)
class _RulesFileBuilder:
    reference: Dump
    candidate: Dump
    own: RulesFile
    learned: Learned
    alignment: Alignment
    _unpaired_layers: set[str] = field(default_factory=set)
    """Layers of the candidate without a partner that rules would give one by their names."""

    def rules(self) -> RulesFile:
        """The rules that give the same pairs; among several tried, those with the fewest differences."""
        best: tuple[int, RulesFile] | None = None
        blocked: set[str] = set()
        narrowed: set[MapRule] = set()
        placed_first: dict[Key, MapRule] = {}
        for turn in range(_ROUNDS):
            made = self._renamings(blocked) if turn < _ROUNDS - 1 else ()
            file = self._with_maps((*self._namesakes, *made), narrowed, placed_first.values())
            pairs = self._pairs(file)
            missing, extra = self.wanted - pairs.keys(), pairs.keys() - self.wanted
            if best is None or len(missing) + len(extra) < best[0]:
                best = len(missing) + len(extra), file
            if not missing and not extra:
                break
            layers = {self._layer_of[name] for _, names, _ in missing | extra for name in names}
            self._unpaired_layers |= layers - self._paired_layers
            blocked |= layers & self._paired_layers
            narrowed |= {rule for rule in self._learned_maps if any(key in extra for key in self._possible_pairs[rule])}
            placed_first |= {key: self._map_of[key] for key in missing}
        return best[1] if best is not None else self.own

    @cached_property
    def wanted(self) -> set[Key]:
        """The pairs that the rules must give."""
        return {_key(pair.reference, pair.candidate) for pair in self.alignment.pairs}

    @cached_property
    def _paired_layers(self) -> set[str]:
        """The candidate's layers that are in a pair."""
        return {part.layer for pair in self.alignment.pairs for part in parts_of(pair.candidate)}

    @cached_property
    def _layer_of(self) -> dict[str, str]:
        return {entry.name: entry.layer for entry in self.candidate.entries}

    def _pairs(self, file: RulesFile) -> dict[Key, Pair]:
        plan = AlignmentPlan.for_dumps(self.reference, self.candidate, file)
        pairs = align(self.reference, self.candidate, plan).pairs
        return {_key(pair.reference, pair.candidate): pair for pair in pairs}

    # --- maps --------------------------------------------------------------------------------------------

    def _with_maps(self, rules: tuple[Rule, ...], narrowed: set[MapRule], placed_first: Iterable[MapRule]) -> RulesFile:
        """Add maps for what rules alone do not pair.

        A map in ``narrowed`` would pair too much, so it is written layer by layer. ``placed_first`` are maps of pairs
        that names would take, unless a map comes before them.
        """
        file = replace(self.own, rules=(*self.own.rules, *rules))
        lacking = self.wanted - self._pairs(file).keys()
        needed = [rule for rule in self._learned_maps if any(key in lacking for key in self._possible_pairs[rule])]
        maps = [
            one for rule in needed for one in (self._singles(rule) if rule in narrowed else [self._as_learned(rule)])
        ]
        return replace(file, maps=tuple(dict.fromkeys((*self.own.maps, *placed_first, *maps))))

    @cached_property
    def _map_of(self) -> dict[Key, MapRule]:
        """A map for each pair alone."""
        return {
            _key(pair.reference, pair.candidate): MapRule(
                _label(pair.reference), _label(pair.candidate), every=False, if_fits=True
            )
            for pair in self.alignment.pairs
        }

    @cached_property
    def _learned_maps(self) -> list[MapRule]:
        return [rule.map for rule in self.learned.rules]

    @cached_property
    def _possible_pairs(self) -> dict[MapRule, dict[Key, tuple[Entry, Entry]]]:
        """What each learned map could pair."""
        plan = AlignmentPlan.for_dumps(self.reference, self.candidate, self.own)
        sides = Index(self.reference, plan.rules, "reference"), Index(self.candidate, plan.rules, "candidate")
        return {rule: {_key(r, c): (r, c) for r, c in resolve_map(rule, *sides)} for rule in self._learned_maps}

    def _singles(self, rule: MapRule) -> Iterator[MapRule]:
        for key, (ours, theirs) in self._possible_pairs[rule].items():
            if key in self.wanted:
                yield MapRule(_label(ours), _label(theirs), every=False, if_fits=not self._fits_everywhere(rule))

    def _as_learned(self, rule: MapRule) -> MapRule:
        """A map that does what it did when it was learned: no more layers, and only if the shapes fit."""
        return replace(rule, every="{" in rule.reference, if_fits=not self._fits_everywhere(rule))

    def _fits_everywhere(self, rule: MapRule) -> bool:
        return all(fits_whole(ours, theirs) for ours, theirs in self._possible_pairs[rule].values())

    # --- rules -------------------------------------------------------------------------------------------

    @property
    def _namesakes(self) -> tuple[Rule, ...]:
        """Rules that take a name away from layers that have it and are something else."""
        layers = sorted({one.layer for one in self.learned.namesakes} | self._unpaired_layers)
        return tuple(
            Rule("candidate", f"^{re.escape(layer)}$", distinct_layer_name(layer).replace("\\", r"\\"))
            for layer in layers
        )

    def _renamings(self, blocked: set[str]) -> tuple[Rule, ...]:
        wanted, kept = self._targets(blocked)
        others = [layer for layer in self._outlines if layer not in wanted and layer not in kept]
        names = LayerNames(wanted, kept, others, self._reference_outlines, self._outlines)
        return Renamings(names, self._rewriting).find()

    def _targets(self, blocked: set[str]) -> tuple[dict[str, str], dict[str, str]]:
        """The names that layers of the candidate should get, and those that they already have by their names."""
        names_of: dict[str, set[str]] = defaultdict(set)
        outputs = {
            pair.candidate.layer for pair in self.alignment.pairs if _is_plain(pair) and not pair.candidate.is_input
        }
        for pair in self.alignment.pairs:
            if _is_plain(pair) and pair.candidate.layer in outputs:  # a fused layer must not be named after one part
                names_of[pair.candidate.layer].add(self._canonical[pair.reference.layer])
        before = self._rewriting(())
        clear = {layer: names.pop() for layer, names in names_of.items() if len(names) == 1}
        kept = {layer: name for layer, name in clear.items() if before(layer) == name}
        wanted = {layer: name for layer, name in clear.items() if layer not in kept and layer not in blocked}
        return wanted, kept

    def _rewriting(self, rules: Sequence[Rule]) -> Callable[[str], str]:
        made = RuleSet((*self.own.rules, *self._namesakes, *rules, *self._presets))
        rewrite = made.rewriter("candidate")
        return lambda layer: rewrite(layer, self._classes.get(layer))

    @cached_property
    def _presets(self) -> tuple[Rule, ...]:
        plan = AlignmentPlan.for_dumps(self.reference, self.candidate, self.own)
        return plan.rules.rules[len(self.own.rules) :]

    @cached_property
    def _classes(self) -> dict[str, str | None]:
        return {entry.layer: entry.origin and entry.origin.module_class for entry in self.candidate.entries}

    @cached_property
    def _canonical(self) -> dict[str, str]:
        index = Index(self.reference, RuleSet((*self.own.rules, *self._presets)), "reference")
        return {entry.layer: index.canonical(entry) for entry in self.reference.entries}

    @cached_property
    def _reference_outlines(self) -> dict[str, Outline]:
        return _outlines((self._canonical[entry.layer], entry.port) for entry in self.reference.entries)

    @cached_property
    def _outlines(self) -> dict[str, Outline]:
        return _outlines((entry.layer, entry.port) for entry in self.candidate.entries)


def _outlines(ports: Iterable[tuple[str, str]]) -> dict[str, Outline]:
    by_layer: dict[str, set[str]] = defaultdict(set)
    for layer, port in ports:
        by_layer[layer].add(port_of(port))
    return outlines(by_layer)


def _key(reference: Entry, candidate: Entry) -> Key:
    ours, theirs = (tuple(part.name for part in parts_of(side)) for side in (reference, candidate))
    return ours, theirs, reference.step


def _is_plain(pair: Pair) -> bool:
    """Whether a renaming could make a pair: two entries at the same port, in the same call."""
    ours, theirs = pair.reference, pair.candidate
    is_whole = not any(isinstance(side.stored, ComputedTensor) for side in (ours, theirs))
    return is_whole and ours.is_input == theirs.is_input and ours.call == theirs.call


def _label(entry: Entry) -> str:
    """What a map calls an entry."""
    from tensordiff.align.expression import Name  # a file without maps needs no expressions

    return entry.name if isinstance(entry.stored, ComputedTensor) else str(Name(entry.name))
