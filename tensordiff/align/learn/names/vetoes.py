"""Vetoes: names that pair two tensors although the values show that another one is meant.

A name loses if a learned rule pairs its entry differently, values refute what the names pair, and what is computed from
it agrees, so that it is another name and not an error. Two layers whose outputs are swapped look like an error: their
names lose only if a layer that gets one of their tensors gets the right one. Beyond the first error, where nothing is
equal, a name loses if the rule's partner resembles the entry far more, or if its word means something else in all
healthy layers. If two sides count the same blocks differently, every rule of these blocks wins against equal numbers.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from tensordiff.align.by_value import Fingerprint, fingerprint
from tensordiff.align.expression.placeholder import placeholders_in
from tensordiff.align.learn.evidence import Evidence, ValueClass, view_between
from tensordiff.align.learn.generalization import GeneralRule
from tensordiff.align.learn.learned import LearnedRule
from tensordiff.align.learn.names.unweighted_norms import UnweightedNorms
from tensordiff.align.learn.nodes import Block, Node, NodeMatches
from tensordiff.align.learn.pairing.ports import LearnedPair
from tensordiff.align.learn.resemblance import alike
from tensordiff.align.match import Alignment
from tensordiff.align.rules.tables import MapRule
from tensordiff.dump.model import Entry

_LEAST, _FAR, _NEARER = 0.5, 0.5, 0.8
"""How alike a rule's partner must be, and the share of the named one's distance that it may have; the last is for a
named one that is probably another tensor."""
_AGREE_AFTER = 6
"""How many tensors must agree after a layer for it to be healthy: an error spoils what follows."""
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*")


@dataclass(eq=False)
class Vetoes:
    """The evidence against names."""

    evidence: Evidence
    """What is equal; ``matches`` goes on to what is probably the same."""
    matches: NodeMatches
    alignment: Alignment
    _read: dict[int, Fingerprint | None] = field(default_factory=dict)

    def find_foreign_words(self) -> None:
        """Exclude the candidate's layers whose word, wherever all is healthy, means what the reference lacks."""
        if not self.evidence.candidate.index.dump.ordered:
            return  # the order of the layers is not known
        ends = sorted(self._proven_positions(1))
        unweighted = {id(node) for node in UnweightedNorms(self.evidence, self.matches).nodes()}
        self.matches.foreign |= unweighted
        known: dict[str, list[bool]] = defaultdict(list)
        for node in self.matches.candidate:
            is_healthy = len(ends) - bisect_right(ends, node.position) >= _AGREE_AFTER or id(node) in unweighted
            if node.outputs and is_healthy and (word := _word(node)) is not None:
                is_known = id(node) in self.matches.of_candidate or any(map(self._may_be_known, node.outputs))
                known[word].append(is_known)
        words = {word for word, seen in known.items() if not any(seen)}
        self.matches.foreign |= {id(node) for node in self.matches.candidate if _word(node) in words}

    def _may_be_known(self, entry: Entry) -> bool:
        one = self.evidence.class_of.get(id(entry))
        return one is None or one.is_weak or one.is_shared

    def is_refuted(self, ours: Node, theirs: Node) -> bool:
        """Whether names pair two nodes that are different ones."""
        pairs = [(a, b) for a in ours.outputs for b in theirs.outputs]
        if any(self.evidence.is_same(a, b) for a, b in pairs):
            return False
        if self._is_foreign(theirs) or self._is_other_call(ours, theirs):
            return True
        return bool(pairs) and all(self.evidence.are_different(a, b) for a, b in pairs)

    def _is_other_call(self, ours: Node, theirs: Node) -> bool:
        """Whether another call of a shared layer gets what the reference's call gets."""
        input_classes = [self.evidence.class_of.get(id(entry)) for entry in ours.inputs]
        proofs = [one for one in input_classes if one is not None and one.is_proof]
        calls = {self.matches.node_of[id(item.entry)].call for one in proofs for item in one.members[1]
                 if item.entry.is_input and item.entry.layer == theirs.layer}  # fmt: skip
        return theirs.is_shared and bool(calls) and theirs.call not in calls

    def _is_foreign(self, node: Node | None) -> bool:
        return id(node) in self.matches.foreign

    # --- what is computed from an entry -----------------------------------------------------------------

    def agrees_after(self, entry: Entry) -> bool:
        """Whether what is computed from an entry is proven to be the same.

        If no layer is seen to get it: whether anything is proven after its module has ended.
        """
        node, one = self.matches.node_of.get(id(entry)), self.evidence.class_of.get(id(entry))
        if node is None or one is None:
            return False
        made = self._computed_from(one)
        return any(map(self._is_proven, made)) if made else self._is_before_proven(node)

    def _is_before_proven(self, node: Node) -> bool:
        """Whether anything is proven that comes after a node's module."""
        is_ordered = self.evidence.reference.index.dump.ordered  # otherwise positions mean nothing
        return is_ordered and (node.parent or node).position < self._last_proven(0)

    def _computed_from(self, one: ValueClass) -> list[Entry]:
        """The outputs of the reference's layers that get a tensor, other than that tensor."""
        getting = [self.matches.node_of[id(item.entry)] for item in one.members[0] if item.entry.is_input]
        return [e for node in getting for e in node.outputs if self.evidence.class_of.get(id(e)) is not one]

    def _is_given_by_name(self, one: ValueClass) -> bool:
        """Whether a layer gets a tensor, or what is made from it, on both sides under the same name.

        If an error has swapped two layers, what gets the tensor of one gets that of the other on the other side.
        """
        waiting, seen = [one], {id(one)}
        while waiting:
            current = waiting.pop()
            inputs = (item.entry for item in current.members[0] if item.entry.is_input)
            if any(self._is_named_right(entry, current) for entry in inputs):
                return True
            computed = (
                self.evidence.class_of[id(entry)] for entry in self._computed_from(current) if self._is_proven(entry)
            )
            new = {id(other): other for other in computed if id(other) not in seen}
            seen |= new.keys()
            waiting += new.values()
        return False

    def _is_named_right(self, entry: Entry, one: ValueClass) -> bool:
        """Whether names pair an entry with one that has the same tensor."""
        partner = self.named.get(id(entry))
        return partner is not None and any(partner is item.entry for item in one.members[1])

    def _has_lost_its_name(self, entry: Entry) -> bool:
        """Whether both sides probably have a tensor that names pair correctly nowhere, as one swapped with another."""
        # Not ``self.evidence``, which has what is equal: beyond the first error nothing is, and two swapped tensors
        # there are found only by what is probably the same. That is enough here, since a yes can only spare a name.

        one = self.matches.evidence.class_of.get(id(entry))
        if one is None or one.is_weak or not one.is_shared:
            return False
        return not any(self._is_named_right(item.entry, one) for item in one.members[0])

    def _is_proven(self, entry: Entry) -> bool:
        one = self.evidence.class_of.get(id(entry))
        return one is not None and one.is_proof

    def _last_proven(self, side: int) -> int:
        """Where the last output of a side stands that both sides have."""
        return max(self._proven_positions(side), default=-1)

    def _proven_positions(self, side: int) -> list[int]:
        """Where each tensor that both sides have is first given by a layer of one of them."""
        position = (self.evidence.candidate if side else self.evidence.reference).position
        outputs = (
            [position[id(item.entry)] for item in one.members[side] if not item.entry.is_input]
            for one in self.evidence.classes
            if one.is_proof
        )
        return [min(some) for some in outputs if some]

    # --- rules against names -----------------------------------------------------------------------------

    @cached_property
    def named(self) -> dict[int, Entry]:
        """What names pair, by ids, from either side."""
        plain = [pair for pair in self.alignment.pairs if pair.by in ("name", "rule")]
        partners = {id(pair.reference): pair.candidate for pair in plain}
        return partners | {id(pair.candidate): pair.reference for pair in plain}

    def beats_names(self, rule: GeneralRule) -> bool:
        """Whether, in every layer that supports a rule, names pair the entries differently and are refuted."""
        against = [self._pair_contradicts_names(pair) for pair in rule.proven or rule.pairs]
        return any(against) and None not in against

    def _pair_contradicts_names(self, pair: LearnedPair) -> bool | None:
        """Whether names pair the parts of a learned pair differently; None if values leave that possible."""
        ours, theirs = pair.reference.parts, pair.candidate.parts
        if len(ours) == len(theirs) == 1:
            return self._contradicts_names(ours[0], theirs[0])
        if not pair.is_proven or not pair.is_sum:
            return None
        named = [(entry, self.named[id(entry)]) for entry in (*ours, *theirs) if id(entry) in self.named]
        return bool(named) if all(self._are_different(*both) for both in named) else None

    def _are_different(self, one: Entry, other: Entry) -> bool:
        """Whether two entries are different tensors; what was not read before is read."""
        known = [self.evidence.class_of.get(id(entry)) for entry in (one, other)]
        if None not in known:
            return known[0] is not known[1]
        first, second = self._fingerprint_of(one), self._fingerprint_of(other)
        return first is not None and second is not None and view_between(first, second) is None

    def _contradicts_names(self, ours: Entry, theirs: Entry) -> bool | None:
        """Whether names pair an entry with another than a rule does; None if values leave that possible."""
        named = self.named.get(id(ours), theirs), self.named.get(id(theirs), ours)
        if named[0] is theirs and named[1] is ours:
            return False
        if self._is_renamed(ours, theirs, named[0]) or self._is_call_of_other(ours, theirs, named[1]):
            return True
        if self.evidence.is_proven(ours, theirs):
            is_refuted = self.evidence.are_different(ours, named[0]) or self.evidence.are_different(named[1], theirs)
            return True if is_refuted and self._is_other_name(ours, theirs, named) else None
        if any(map(self._has_lost_its_name, _other_partners(ours, theirs, named))):
            return None
        others = [(ours, named[0])] if named[0] is not theirs else []
        others += [(named[1], theirs)] if named[1] is not ours else []
        rival = self._alike(ours, theirs)
        return True if all(self._is_less_alike(a, b, rival) for a, b in others) else None

    def _is_other_name(self, ours: Entry, theirs: Entry, named: tuple[Entry, Entry]) -> bool:
        """Whether two entries that names pair with others have different names, rather than an error."""
        one, node, other = self.evidence.class_of[id(ours)], *(self.matches.node_of[id(e)] for e in (ours, theirs))
        others = _other_partners(ours, theirs, named)
        if (node.is_shared or other.is_shared) and len(others) == 1:
            return self.agrees_after(ours)  # names do not say which call is which
        if any(map(self._has_lost_its_name, others)):
            return self._is_given_by_name(one)
        return any(map(self._is_proven, self._computed_from(one)))

    def _is_renamed(self, ours: Entry, theirs: Entry, named: Entry) -> bool:
        """Whether a rule pairs two matched calls, while names pair another call of the same layer."""
        node, other, third = (self.matches.node_of.get(id(entry)) for entry in (ours, theirs, named))
        if node is None or third is None or third is other or self.matches.of_reference.get(id(node)) is not other:
            return False
        return self._is_other_call(node, third)

    def _is_call_of_other(self, ours: Entry, theirs: Entry, named: Entry) -> bool:
        """Whether a rule pairs two matched calls, while names pair that call with a layer that has another."""
        node, other, third = (self.matches.node_of.get(id(entry)) for entry in (ours, theirs, named))
        if other is None or third is None or third is node or self.matches.of_candidate.get(id(other)) is not node:
            return False
        return self._is_other_call(third, other)

    def is_right_call(self, ours: Entry, theirs: Entry) -> bool:
        """Whether names pair an entry with another call of a rule's partner, which is more like it."""
        named = self.named.get(id(ours))
        if named is None or named is theirs or named.layer != theirs.layer:
            return False
        return self._alike(ours, named) > self._alike(ours, theirs)

    def _is_less_alike(self, ours: Entry, theirs: Entry, rival: float) -> bool:
        """Whether names pair two tensors one of which resembles another far more, or has no partner at all."""
        if self._is_foreign(self.matches.node_of.get(id(theirs))):
            return rival >= _LEAST
        nearer = _NEARER if self.matches.evidence.are_different(ours, theirs) else _FAR
        return rival >= _LEAST and 1.0 - rival <= nearer * (1.0 - self._alike(ours, theirs))

    def _alike(self, ours: Entry, theirs: Entry) -> float:
        first, second = self._fingerprint_of(ours), self._fingerprint_of(theirs)
        return alike(first, second) if first is not None and second is not None else 0.0

    def _fingerprint_of(self, entry: Entry) -> Fingerprint | None:
        """An entry's fingerprint. Only a sample of all entries was read before; the others are read once."""
        if id(entry) not in self._read:
            self._read[id(entry)] = self.evidence.fingerprint_of(entry) or fingerprint(entry)
        return self._read[id(entry)]

    # --- numbering -------------------------------------------------------------------------------------

    def with_numbering(self, rules: Iterable[LearnedRule], blocks: Mapping[Block, Block]) -> tuple[LearnedRule, ...]:
        """Make all rules beat names if the two sides count the same blocks differently."""
        offsets = {(ours[0], theirs[0], theirs[1] - ours[1]) for ours, theirs in blocks.items()}
        clear = {one for one in offsets if one[2] and sum(one[:2] == other[:2] for other in offsets) == 1}
        clear -= self._offsets_by_name  # the user's rules already count so
        if not clear:
            return tuple(rules)
        return tuple(replace(one, beats_names=one.beats_names or _numbering(one.map) in clear) for one in rules)

    @property
    def _offsets_by_name(self) -> set[tuple[str, str, int]]:
        """By how much the candidate counts on in blocks that names pair."""
        nodes = self.matches.node_of
        named = (pair for pair in self.alignment.pairs if pair.by in ("name", "rule"))
        blocks = [
            (ours.block, theirs.block) for pair in named
            if (ours := nodes.get(id(pair.reference))) and (theirs := nodes.get(id(pair.candidate)))
        ]  # fmt: skip
        return {(ours[0], theirs[0], theirs[1] - ours[1]) for ours, theirs in blocks if ours and theirs}


def _other_partners(ours: Entry, theirs: Entry, named: tuple[Entry, Entry]) -> list[Entry]:
    """What names pair two entries with, other than each other."""
    return [entry for entry in named if entry is not ours and entry is not theirs]


def _numbering(rule: MapRule) -> tuple[str, str, int] | None:
    """The texts before the number of a map's layers, and by how much the candidate counts on."""
    sides = [(text, placeholders_in(text)) for text in (rule.reference, rule.candidate)]
    if not all(found for _, found in sides) or any(found[0][0].factor != 1 for _, found in sides):
        return None
    before = [text[: found[0][1].start].rpartition("(")[2] for text, found in sides]
    return before[0], before[1], sides[1][1][0][0].offset - sides[0][1][0][0].offset


def _word(node: Node) -> str | None:
    """The last word of a layer's name."""
    words = _WORD.findall(re.split(r"[./:|]", node.outline.pieces[-1])[-1])
    return words[-1] if words else None
