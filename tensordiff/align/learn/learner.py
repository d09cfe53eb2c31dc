"""Learning, from two dumps and how names pair them, to the rules for what names leave over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from tensordiff.align.expression.placeholder import placeholders_in
from tensordiff.align.index import Index, parts_of
from tensordiff.align.learn.evidence import Evidence, evidence_of, shared_steps
from tensordiff.align.learn.fused import FusedPairs
from tensordiff.align.learn.learned import Learned, LearnedRule
from tensordiff.align.learn.lift import Lifted, Lifter
from tensordiff.align.learn.nodes import Node, NodeMatches, fits_blocks, nodes_of
from tensordiff.align.learn.ports import LearnedPair, PortPairs
from tensordiff.align.learn.structure import Structure
from tensordiff.align.maps import resolve_map
from tensordiff.align.match import Alignment
from tensordiff.align.operations import is_operation
from tensordiff.align.rules.tables import MapRule
from tensordiff.dump.model import Entry

_MAX_ENTRIES = 60_000


def learn(reference: Index, candidate: Index, alignment: Alignment) -> Learned:
    """The rules that pair what names leave over, or pair wrongly."""
    steps = shared_steps(reference, candidate)
    if not steps or not _leaves_something(alignment) or max(len(reference.dump), len(candidate.dump)) > _MAX_ENTRIES:
        return Learned()
    return _Learner(reference, candidate, alignment, evidence_of(reference, candidate, steps[0])).learned()


def _leaves_something(alignment: Alignment) -> bool:
    """Whether a side has orphans; operations are paired by their sequence or not at all."""
    orphans = (*alignment.reference_orphans, *alignment.candidate_orphans)
    return any(not is_operation(entry.layer) for entry in orphans)


@dataclass(eq=False)
class _Learner:
    reference: Index
    candidate: Index
    alignment: Alignment
    evidence: Evidence
    _proven: dict[int, Entry] = field(default_factory=dict)
    """The partners that values prove, by ids, from either side."""

    def learned(self) -> Learned:
        """All rules that hold."""
        pairs = list(self._pairs())
        for pair in pairs:
            if pair.is_proven and len(pair.reference.parts) == len(pair.candidate.parts) == 1:
                ours, theirs = pair.reference.parts[0], pair.candidate.parts[0]
                self._proven[id(ours)], self._proven[id(theirs)] = theirs, ours
        lifter = Lifter(self.evidence, pairs)
        rules = [one for rule in lifter.rules() for one in ([rule] if self._holds(rule) else lifter.singles(rule))]
        return Learned(_with_numbering(list(map(self._rule, dict.fromkeys(rules)))))

    def _pairs(self) -> Iterator[LearnedPair]:
        matches = NodeMatches.of(self.evidence)
        named = list(self._named_nodes(matches))
        matches.match_by_value(named)
        blocks = matches.blocks()
        for ours, theirs in named:
            is_possible = fits_blocks(ours, theirs, blocks) and not self._is_refuted(ours, theirs)
            if matches.are_free(ours, theirs) and is_possible:
                matches.take(ours, theirs, is_proven=False)
        Structure(matches).carry()
        ports = PortPairs(matches)
        yield from ports.pair_all()
        fused = FusedPairs(matches, ports.used | self._named)
        whole = list(fused.pairs())
        yield from whole
        ports.used |= fused.used | {id(e) for pair in whole for e in (*pair.reference.parts, *pair.candidate.parts)}
        yield from ports.pair_across()
        fused.used |= ports.used - {id(e) for pair in whole for e in (*pair.reference.parts, *pair.candidate.parts)}
        yield from fused.pairs_of_rest()
        yield from fused.pairs_alike()

    @cached_property
    def _named(self) -> set[int]:
        """Entries that names, or maps of presets or of the user, pair; not the parts of a fused one. By their ids."""
        return {id(side) for pair in self.alignment.pairs for side in (pair.reference, pair.candidate)}

    def _named_nodes(self, matches: NodeMatches) -> Iterator[tuple[Node, Node]]:
        seen: set[tuple[int, int]] = set()
        for pair in self.alignment.pairs:
            ours, theirs = matches.node_of.get(id(pair.reference)), matches.node_of.get(id(pair.candidate))
            is_plain = pair.reference.is_input == pair.candidate.is_input
            if is_plain and ours is not None and theirs is not None and (id(ours), id(theirs)) not in seen:
                seen.add((id(ours), id(theirs)))
                yield ours, theirs

    def _is_refuted(self, ours: Node, theirs: Node) -> bool:
        pairs = [(a, b) for a in ours.outputs for b in theirs.outputs]
        return bool(pairs) and all(self.evidence.are_others(a, b) for a, b in pairs)

    # --- what holds ------------------------------------------------------------------------------------

    def _holds(self, rule: Lifted) -> bool:
        """Whether no values refute a rule, and all layers it is for have the ports of those it was learned from."""
        steps = [self.evidence.reference.step]
        made = list(resolve_map(MapRule(rule.reference, rule.candidate), self.reference, self.candidate, steps))
        if rule.is_general and not all(map(self._has_ports_of(rule), made)):
            return False
        return not any(self._is_refuted_pair(r, c) for r, c in made)

    def _is_refuted_pair(self, ours: Entry, theirs: Entry) -> bool:
        """Whether values prove another partner for one of two entries, and what comes after it agrees."""
        partners = self._proven.get(id(ours), theirs), self._proven.get(id(theirs), ours)
        is_other = partners[0] is not theirs or partners[1] is not ours
        return is_other and self.evidence.are_others(ours, theirs) and self._agrees_after(ours)

    def _has_ports_of(self, rule: Lifted) -> Callable[[tuple[Entry, Entry]], bool]:
        """Whether a pair's layers have as many ports as those of a rule: a first layer may get its residual whole."""
        seen = {self._port_counts((*p.reference.parts, *p.candidate.parts)) for p in rule.proven or rule.pairs}
        return lambda pair: self._port_counts((*parts_of(pair[0]), *parts_of(pair[1]))) in seen

    def _port_counts(self, entries: Iterable[Entry]) -> tuple[int, ...]:
        return tuple(self._ports[id(entry)] for entry in entries)

    @cached_property
    def _ports(self) -> dict[int, int]:
        """How many inputs, or outputs, there are at the node of each entry, by its id."""
        counts: dict[int, int] = {}
        for side in (self.evidence.reference, self.evidence.candidate):
            calls: dict[tuple[str, int, bool], list[Entry]] = defaultdict(list)
            for entry in side.all_entries:
                calls[entry.layer, entry.call, entry.is_input].append(entry)
            counts |= {id(entry): len(some) for some in calls.values() for entry in some}
        return counts

    def _agrees_after(self, entry: Entry) -> bool:
        """Whether what is computed from an entry is proven to be the same, so that it is no error but another name.

        Where nothing is seen to get it: whether anything is, after its module has ended.
        """
        node, one = self._nodes.get(id(entry)), self.evidence.of_entry.get(id(entry))
        if node is None or one is None:
            return False
        getting = [self._nodes[id(item.entry)] for item in one.members[0] if item.entry.is_input]
        outputs = [e for other in getting for e in other.outputs if self.evidence.of_entry.get(id(e)) is not one]
        if outputs:
            return any(self._is_proven(output) for output in outputs)
        return (node.parent or node).position < self._last_proven

    def _is_proven(self, entry: Entry) -> bool:
        one = self.evidence.of_entry.get(id(entry))
        return one is not None and one.is_shared and not one.is_weak

    @cached_property
    def _nodes(self) -> dict[int, Node]:
        return {
            id(entry): node for node in nodes_of(self.evidence.reference) for entry in (*node.inputs, *node.outputs)
        }

    @cached_property
    def _last_proven(self) -> int:
        """Where the last output stands that both sides have."""
        shared = [one for one in self.evidence.classes if one.is_shared and not one.is_weak]
        outputs = (item.entry for one in shared for item in one.members[0] if not item.entry.is_input)
        return max((self.evidence.reference.position[id(entry)] for entry in outputs), default=-1)

    def _rule(self, rule: Lifted) -> LearnedRule:
        proof = tuple(
            (", ".join(part.name for part in pair.reference.parts), ", ".join(p.name for p in pair.candidate.parts))
            for pair in rule.proven
        )
        return LearnedRule(MapRule(rule.reference, rule.candidate), proof, self._beats_names(rule))

    # --- names that values refute ------------------------------------------------------------------------

    @cached_property
    def _partners(self) -> dict[int, Entry]:
        """What names pair, by ids, from either side."""
        plain = [pair for pair in self.alignment.pairs if pair.by in ("name", "rule")]
        partners = {id(pair.reference): pair.candidate for pair in plain}
        return partners | {id(pair.candidate): pair.reference for pair in plain}

    def _beats_names(self, rule: Lifted) -> bool:
        """Whether names pair the reference's entries otherwise in every layer that is proven, and are refuted there."""
        plain = [pair for pair in rule.proven if len(pair.reference.parts) == len(pair.candidate.parts) == 1]
        if not plain or len(plain) < len(rule.proven):
            return False
        against = [self._is_against(pair.reference.parts[0], pair.candidate.parts[0]) for pair in plain]
        return any(against) and None not in against

    def _is_against(self, ours: Entry, theirs: Entry) -> bool | None:
        """Whether names pair an entry with another than the proven one; None where values leave that possible."""
        named = self._partners.get(id(ours), theirs), self._partners.get(id(theirs), ours)
        if named[0] is theirs and named[1] is ours:
            return False
        is_refuted = self.evidence.are_others(ours, named[0]) or self.evidence.are_others(named[1], theirs)
        return True if is_refuted and self._agrees_after(ours) else None


def _with_numbering(rules: list[LearnedRule]) -> tuple[LearnedRule, ...]:
    """Rules that all beat names where one does because the two sides count the same blocks differently."""
    beating = {_containers(rule.map) for rule in rules if rule.beats_names and _containers(rule.map) is not None}
    return tuple(replace(rule, beats_names=rule.beats_names or _containers(rule.map) in beating) for rule in rules)


def _containers(rule: MapRule) -> tuple[str, ...] | None:
    """The texts before the number of a map's layers, where the two sides count differently."""
    first = [placeholders_in(text)[:1] for text in (rule.reference, rule.candidate)]
    if not all(first) or first[0][0][0] == first[1][0][0]:
        return None
    return tuple(
        f"{text[: found[0][1].start].rpartition('(')[2]}{found[0][0]}"
        for text, found in zip((rule.reference, rule.candidate), first, strict=True)
    )
