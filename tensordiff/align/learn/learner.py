"""Learning rules from two dumps and how names pair them, for what names leave over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from tensordiff.align.index import Index, parts_of
from tensordiff.align.learn.evidence import Evidence, evidence_of, shared_steps
from tensordiff.align.learn.generalization import Generalizer, GeneralRule
from tensordiff.align.learn.learned import Learned, LearnedRule, Namesake
from tensordiff.align.learn.names.namesakes import Namesakes
from tensordiff.align.learn.names.vetoes import Vetoes
from tensordiff.align.learn.nodes import Node, NodeMatches, fits_blocks
from tensordiff.align.learn.pairing.arrangements import Arrangements
from tensordiff.align.learn.pairing.axis_order import pairs_in_layout
from tensordiff.align.learn.pairing.fused import FusedPairs
from tensordiff.align.learn.pairing.ports import LearnedPair, PortPairs
from tensordiff.align.learn.pairing.split_parts import RemainingParts
from tensordiff.align.learn.resemblance import resembling
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
    if not steps or not leaves_something(alignment) or max(len(reference.dump), len(candidate.dump)) > _MAX_ENTRIES:
        return Learned()
    return _Learner(reference, candidate, alignment, evidence_of(reference, candidate, steps[0])).learned()


def leaves_something(alignment: Alignment) -> bool:
    """Whether a side has orphans. Operations do not count: they are paired by their sequence or not at all."""
    orphans = (*alignment.reference_orphans, *alignment.candidate_orphans)
    return any(not is_operation(entry.layer) for entry in orphans)


@dataclass(eq=False)
class _Learner:
    reference: Index
    candidate: Index
    alignment: Alignment
    evidence: Evidence
    _proven: dict[int, Entry] = field(default_factory=dict)
    """The partners that values prove, by id, from either side."""
    _namesakes: list[Namesake] = field(default_factory=list)

    @cached_property
    def matches(self) -> NodeMatches:
        """The matched nodes, as far as they are found."""
        return NodeMatches.of(self.evidence)

    @cached_property
    def vetoes(self) -> Vetoes:
        """The evidence against names."""
        return Vetoes(self.evidence, self.matches, self.alignment)

    def learned(self) -> Learned:
        """All rules that hold."""
        pairs = list(self._pairs())
        arrangements = Arrangements(self.matches, pairs, self.vetoes.named)
        for pair in pairs:
            if pair.is_proven and len(pair.reference.parts) == len(pair.candidate.parts) == 1:
                ours, theirs = pair.reference.parts[0], pair.candidate.parts[0]
                self._proven[id(ours)], self._proven[id(theirs)] = theirs, ours
        generalizer = Generalizer(self.matches.evidence, pairs)
        rules = [
            one
            for rule in generalizer.rules()
            for one in ([rule] if self._holds(rule) else generalizer.single_rules(rule))
        ]
        made = (self._rule(rule, arrangements) for rule in dict.fromkeys(rules))
        return Learned(self.vetoes.with_numbering(made, self.matches.blocks()), tuple(self._namesakes))

    def _match_nodes(self) -> None:
        """Match nodes by value, then by name unless values refute it, by likely equal values, and by structure."""
        matches = self.matches
        named = list(self._named_nodes(matches))
        matches.match_by_value(named)
        self.vetoes.find_foreign_words()
        self._look_at_namesakes(named)
        blocks = matches.blocks()
        for ours, theirs in named:
            is_possible = fits_blocks(ours, theirs, blocks) and not self.vetoes.is_refuted(ours, theirs)
            if matches.are_free(ours, theirs) and is_possible:
                matches.take(ours, theirs)
        foreign = {id(entry) for node in matches.candidate if id(node) in matches.foreign for entry in node.outputs}
        matches.use_evidence(
            self.evidence.with_likely_matches(resembling(self.evidence, foreign, self.vetoes.agrees_after))
        )
        matches.match_by_value(named)
        Structure(matches).match_all()

    def _pairs(self) -> Iterator[LearnedPair]:
        """The pairs of tensors, each kind on what the earlier ones left."""
        self._match_nodes()
        matches = self.matches
        ports = PortPairs(matches)
        yield from ports.pair_all()
        laid_out = pairs_in_layout(matches, ports.pairs, ports.used)
        yield from laid_out
        ports.used |= _part_ids(laid_out)
        fused = FusedPairs(matches, ports.used | self._named)
        whole = list(fused.pairs())
        last = list(RemainingParts(matches, fused.used).pairs(whole))
        fused.used |= {id(one.parts[0]) for pair in last for one in pair[:2] if one.template == "{0}"}
        whole += [*last, *fused.likely_concatenations()]
        yield from whole
        ports.used |= fused.used | _part_ids(whole)
        yield from ports.pair_across()
        fused.used |= ports.used - _part_ids(whole)
        rest = list(fused.pairs_of_remaining())
        tokens = list(fused.likely_tokens())
        yield from (*rest, *tokens)
        ports.used = (ports.used | fused.used) - self._left_by_names(ports.pairs)
        yield from ports.pair_second_sums()
        pairs = [*ports.pairs, *laid_out, *whole, *rest, *tokens]
        yield from ports.take_all(Arrangements(matches, pairs, self.vetoes.named).missing())
        yield from ports.pair_second_partners()
        yield from ports.pair_copies([*ports.pairs, *whole, *tokens])

    def _left_by_names(self, pairs: Iterable[LearnedPair]) -> set[int]:
        """Ids of the candidate's entries that names pair with a reference entry which learning pairs with another."""
        parts = {id(pair.reference.parts[0]): pair.candidate.parts for pair in pairs if len(pair.reference.parts) == 1}
        paired = {id(part) for some in parts.values() for part in some}
        left = {id(pair.candidate) for pair in self.alignment.pairs if id(pair.reference) in parts}
        return left - paired

    def _look_at_namesakes(self, named: list[tuple[Node, Node]]) -> None:
        free = [pair for pair in named if self.matches.are_free(*pair)]
        for node, namesake in Namesakes(self.evidence, self.matches, self.alignment).find(free):
            self.matches.foreign.add(id(node))
            self._namesakes.append(namesake)

    @cached_property
    def _named(self) -> set[int]:
        """Ids of entries that names, or maps of presets or of the user, pair; without the parts of fused ones."""
        return {id(side) for pair in self.alignment.pairs for side in (pair.reference, pair.candidate)}

    def _named_nodes(self, matches: NodeMatches) -> Iterator[tuple[Node, Node]]:
        seen: set[tuple[int, int]] = set()
        for pair in self.alignment.pairs:
            ours, theirs = matches.node_of.get(id(pair.reference)), matches.node_of.get(id(pair.candidate))
            is_plain = pair.reference.is_input == pair.candidate.is_input
            if is_plain and ours is not None and theirs is not None and (id(ours), id(theirs)) not in seen:
                seen.add((id(ours), id(theirs)))
                yield ours, theirs

    # --- what holds ------------------------------------------------------------------------------------

    def _holds(self, rule: GeneralRule) -> bool:
        """Whether no values refute a rule, and all its layers have the ports of those it was learned from.

        A layer that values prove may have other ports: the first norm gets no residual, and has one output.
        """
        if not rule.is_general and rule.proven:
            return True
        steps = [self.evidence.reference.step]
        made = list(resolve_map(MapRule(rule.reference, rule.candidate), self.reference, self.candidate, steps))
        unproven = [(ours, theirs) for ours, theirs in made if self._proven.get(id(ours)) is not theirs]
        if rule.is_general and not all(map(self._has_ports_of(rule), unproven)):
            return False
        return not any(self._is_refuted_pair(r, c) for r, c in made)

    def _is_refuted_pair(self, ours: Entry, theirs: Entry) -> bool:
        """Whether values prove another partner for one of two entries, and what is computed from it agrees."""
        partners = self._proven.get(id(ours), theirs), self._proven.get(id(theirs), ours)
        is_other = partners[0] is not theirs or partners[1] is not ours
        return is_other and self.evidence.are_different(ours, theirs) and self.vetoes.agrees_after(ours)

    def _has_ports_of(self, rule: GeneralRule) -> Callable[[tuple[Entry, Entry]], bool]:
        """A test whether a pair's layers have as many ports as those of a rule.

        A first layer may get its residual whole.
        """
        counts = {self._port_counts((*p.reference.parts, *p.candidate.parts)) for p in rule.pairs}
        return lambda pair: self._port_counts((*parts_of(pair[0]), *parts_of(pair[1]))) in counts

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

    def _rule(self, rule: GeneralRule, arrangements: Arrangements) -> LearnedRule:
        proof = tuple(
            (", ".join(part.name for part in pair.reference.parts), ", ".join(p.name for p in pair.candidate.parts))
            for pair in rule.proven
        )
        made = MapRule(rule.reference, rule.candidate)
        beats_names = self.vetoes.beats_names(rule) or arrangements.beat_names(rule.pairs)
        return LearnedRule(made, proof, beats_names and not self._is_of_one_step(made))

    def _is_of_one_step(self, rule: MapRule) -> bool:
        """Whether a rule pairs other calls of a layer than names do, and a later step shows the names to be right.

        Experts are called only if tokens are sent to them, so which call is which differs in every step.
        """
        later = shared_steps(self.reference, self.candidate)[1:]
        return any(
            self.vetoes.is_right_call(*pair) for pair in resolve_map(rule, self.reference, self.candidate, later)
        )


def _part_ids(pairs: Iterable[LearnedPair]) -> set[int]:
    """The ids of all entries in some pairs."""
    return {id(entry) for pair in pairs for entry in (*pair.reference.parts, *pair.candidate.parts)}
