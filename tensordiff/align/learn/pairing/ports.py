"""Entries of matched nodes: which port is which, first by value, then by name, then if shapes leave one choice.

Two ports with proper names that differ are never paired unless values prove it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np

from tensordiff.align.by_value import MIN_ELEMENTS, TOLERANCE, rel_l2
from tensordiff.align.compatibility import are_named_apart, could_be_same
from tensordiff.align.expression import evaluate, evaluate_view, parse
from tensordiff.align.index import port_of
from tensordiff.align.learn.evidence import Evidence, ValueClass
from tensordiff.align.learn.nodes import Block, Node, NodeMatches, fits_blocks, likeness
from tensordiff.dump.dtypes import Array, is_integral, name_of
from tensordiff.dump.model import Entry
from tensordiff.errors import AlignError, DumpError

_SUM = "sum({0}, {1})"
_FEW_IDS = 4
_MOST_CHOICES = 256


def is_one_token(part: Entry, whole: Entry) -> bool:
    """Whether one tensor has the shape of one token of another."""
    try:
        a, b = part.spec, whole.spec
    except (DumpError, AlignError):
        return False
    is_float = not is_integral(a.dtype) and not is_integral(b.dtype)
    return is_float and len(b.shape) > 1 and a.shape[-1:] == b.shape[-1:] and a.size == b.shape[-1] < b.size


def _is_of_one_token(node: Node) -> bool:
    """Whether all float inputs and outputs have one token; with a weight among them, that is not so."""
    try:
        specs = [entry.spec for entry in (*node.inputs, *node.outputs)]
    except (DumpError, AlignError):
        return False
    return all(spec.size == spec.shape[-1] for spec in specs if spec.shape and not is_integral(spec.dtype))


def _has_batch_of_one(ours: Entry, theirs: Entry) -> bool:
    """Whether one tensor is another with a batch of one: [1, S, H] and [S, H]."""
    try:
        return len(ours.spec.shape) > 2 and ours.spec.shape == (1, *theirs.spec.shape)
    except (DumpError, AlignError):
        return False


def _is_sum_of(entry: Entry, a: Entry, b: Entry) -> bool:
    """Whether two tensors add up to a third, and neither is all of it."""
    try:
        if not (could_be_same(entry, a) and could_be_same(entry, b)) or is_integral(entry.spec.dtype):
            return False
        wanted, first, second = (one.read().astype(np.float64) for one in (entry, a, b))
    except (DumpError, AlignError):
        return False
    if not wanted.size == first.size == second.size >= MIN_ELEMENTS:
        return False
    limit = max(TOLERANCE.get(name_of(one.spec.dtype), 0.0) for one in (entry, a, b))
    alone = min(rel_l2(wanted, first), rel_l2(wanted, second))
    return rel_l2(wanted, first.reshape(second.shape) + second) <= min(limit, 0.1 * alone)


class Formula(NamedTuple):
    """An entry, or an expression of several."""

    parts: tuple[Entry, ...]
    template: str = "{0}"
    view: str = ""

    def read(self) -> Array:
        """The values, computed."""
        names = [f'"{k}"' for k in range(len(self.parts))]
        made = evaluate(parse(self.template.format(*names)), lambda name: self.parts[int(name)].read())
        return evaluate_view(self.view, made)


class LearnedPair(NamedTuple):
    """Two formulas that give the same tensor."""

    reference: Formula
    candidate: Formula
    is_proven: bool
    is_second_partner: bool = False
    """Whether the reference's entry has another pair, which comes first."""

    @property
    def is_sum(self) -> bool:
        """Whether one side has a tensor whole that the other passes on in two parts."""
        return _SUM in (self.reference.template, self.candidate.template)


@dataclass(eq=False)
class PortPairs:
    """The pairs of entries that follow from matched nodes."""

    matches: NodeMatches
    pairs: list[LearnedPair] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    """Entries that have a pair, by their ids."""

    @property
    def evidence(self) -> Evidence:
        """What the values prove."""
        return self.matches.evidence

    def pair_all(self) -> list[LearnedPair]:
        """The pairs of all matched nodes, and of what is proven beside them."""
        both = [(node, self.matches.of_reference.get(id(node))) for node in self.matches.reference]
        matched = [(ours, theirs) for ours, theirs in both if theirs is not None]
        ports = [(getattr(a, way), getattr(b, way)) for a, b in matched for way in ("outputs", "inputs")]
        for ours, theirs in ports:
            for a, b in self._proven(ours, theirs):
                self._take(a, b, is_proven=True)
        for one, other in matched:  # a norm that adds the residual also returns the sum
            for a, b in self._proven(self._free(one.inputs), self._free(other.outputs)):
                self._take(a, b, is_proven=True)
        for ours, theirs in ports:
            self._pair_sums(self._free(ours), self._free(theirs))
        for ours, theirs in ports:
            for by_name in (True, False):
                self._pair_unproven(self._free(ours), self._free(theirs), by_name=by_name)
        self._pair_last_tokens()
        return self.pairs

    def _pair_last_tokens(self) -> None:
        """Pair calls of one layer, one of which is matched while another gets only the last token."""
        for node in self.matches.candidate:
            ours = self._partner_of_other_call.get(node.layer)
            if ours is None or id(node) in self.matches.of_candidate or not _is_of_one_token(node):
                continue
            for way in ("outputs", "inputs"):
                for theirs in self._free(getattr(node, way)):
                    same = [r for r in getattr(ours, way) if is_one_token(theirs, r)]
                    if len(same) == 1:
                        formula = Formula((same[0],), "last_token({0})")
                        self.pairs.append(LearnedPair(formula, Formula((theirs,)), is_proven=False))
                        self.used.add(id(theirs))

    def pair_copies(self, pairs: Iterable[LearnedPair]) -> Iterator[LearnedPair]:
        """Pair tensors that matched nodes pass on, on both sides, if the tensor has a pair.

        A model, for example, returns the logits of its head.
        """
        plain = (pair for pair in pairs if len(pair.reference.parts) == 1 and pair.candidate.template == "{0}")
        of_candidate = {id(pair.candidate.parts[0]): pair for pair in plain}
        for node in self.matches.candidate:
            ours = self.matches.of_candidate.get(id(node))
            if ours is None:
                continue
            for entry in self._free(node.outputs):
                one = self.evidence.class_of.get(id(entry))
                copied = () if one is None or one.is_weak else (of_candidate.get(id(i.entry)) for i in one.members[1])
                pair = next((found for found in copied if found is not None), None)
                if pair is None:
                    continue
                whole = self.evidence.class_of.get(id(pair.reference.parts[0]))
                same = [own for own in ours.outputs if self.evidence.class_of.get(id(own)) is whole]
                if len(same) == 1:
                    self.used.add(id(entry))
                    yield LearnedPair(pair.reference._replace(parts=(same[0],)), Formula((entry,)), is_proven=False)

    @cached_property
    def _partner_of_other_call(self) -> dict[str, Node]:
        """The partner of a layer that is called several times, by its name: that of its last call with a partner.

        Functions of a tensor library, such as ``Tensor.__mul__``, are called by many layers: the input of one call says
        nothing about another. These are left out.
        """
        partners: dict[str, Node] = {}
        ambiguous: set[str] = set()
        for node in self.matches.candidate:
            ours = self.matches.of_candidate.get(id(node)) if node.is_shared else None
            if ours is not None and partners.setdefault(node.layer, ours).layer != ours.layer:
                ambiguous.add(node.layer)
            elif ours is not None:
                partners[node.layer] = ours
        return {layer: ours for layer, ours in partners.items() if layer not in ambiguous}

    def _take(self, reference: Entry, candidate: Entry, *, is_proven: bool) -> bool:
        view = self.evidence.view(reference, candidate) if is_proven else ""
        if view is None:
            return False
        one = self.evidence.class_of.get(id(reference))
        is_equal = is_proven and one is not None and one.likeness == 1.0
        self.pairs.append(LearnedPair(Formula((reference,), view=view), Formula((candidate,)), is_equal))
        self.used |= {id(reference), id(candidate)}
        return True

    def _free(self, entries: Iterable[Entry]) -> list[Entry]:
        return [entry for entry in entries if id(entry) not in self.used]

    def _proven(self, ours: list[Entry], theirs: list[Entry]) -> Iterator[tuple[Entry, Entry]]:
        same = [(a, b) for a in ours for b in theirs if self._is_same(a, b)]
        same.sort(key=lambda pair: (port_of(pair[0].port) != port_of(pair[1].port), are_named_apart(*pair)))
        for a, b in same:
            if id(a) not in self.used and id(b) not in self.used:
                yield a, b

    def _is_same(self, ours: Entry, theirs: Entry) -> bool:
        """Whether two ports of matched nodes are the same; here, values that may be equal by chance count, too."""
        one = self.evidence.class_of.get(id(ours))
        return one is not None and one is self.evidence.class_of.get(id(theirs))

    def _pair_sums(self, ours: list[Entry], theirs: list[Entry]) -> None:
        """Pair what one side passes on separately (a result and its residual) and the other adds."""
        for side, whole, apart in ((0, ours, theirs), (1, theirs, ours)):
            for entry in self._free(whole):
                for a, b in combinations(self._free(apart), 2):
                    is_equal = _is_sum_of(entry, a, b)
                    if is_equal or self._is_sum_on_one_side(entry, a, b, side):
                        own, total = Formula((entry,)), Formula((a, b), _SUM)
                        both = (own, total) if side == 0 else (total, own)
                        self.pairs.append(LearnedPair(*both, is_proven=is_equal))
                        self.used |= {id(entry), id(a), id(b)}
                        break

    def _is_sum_on_one_side(self, entry: Entry, a: Entry, b: Entry, side: int) -> bool:
        """Whether two tensors, which an error may have changed, add up on the side that has their sum."""
        first, second = (self.evidence.counterpart(one, side) for one in (a, b))
        return first is not None and second is not None and _is_sum_of(entry, first.entry, second.entry)

    def _pair_unproven(self, ours: list[Entry], theirs: list[Entry], *, by_name: bool) -> None:
        fits = [(a, b) for a in ours for b in theirs if could_be_same(a, b)]
        for a, b in fits:
            # One of two outputs may be what another layer has as its only one, so all of that shape are counted.
            peers = len({id(y) for x, y in fits if x is a}), len({id(x) for x, y in fits if y is b})
            has_name = port_of(a.port) == port_of(b.port)
            is_clear = peers[0] == peers[1] if by_name else peers == (1, 1) and (a.is_input or len(ours) == len(theirs))
            if is_clear and (has_name or not by_name) and self._may_be(a, b):
                self._take(a, b, is_proven=False)

    def _may_be(self, ours: Entry, theirs: Entry) -> bool:
        if id(ours) in self.used or id(theirs) in self.used:
            return False
        is_other = self.evidence.are_different(ours, theirs) and self._has_other(ours, theirs)
        return not is_other and not are_named_apart(ours, theirs)

    def _has_other(self, ours: Entry, theirs: Entry) -> bool:
        """Whether one of two tensors was found elsewhere, at a port that has no partner yet."""
        for side, entry in enumerate((ours, theirs)):
            one = self.evidence.class_of.get(id(entry))
            members = one.members[1 - side] if one is not None and not one.is_weak else ()
            if any(item.entry.is_input == entry.is_input and id(item.entry) not in self.used for item in members):
                return True
        return False

    # --- what is proven, though its layer has no partner ------------------------------------------------

    def pair_across(self) -> list[LearnedPair]:
        """Pair outputs that the other side has only as inputs, and inputs of layers that one side fuses."""
        before, blocks = len(self.pairs), self.matches.blocks()
        self._pair_across(blocks)
        return self.pairs[before:]

    def _pair_across(self, blocks: dict[Block, Block]) -> None:
        for one in self.evidence.classes:
            if one.is_weak or not one.is_shared:
                continue
            for a, b in self._choices(one, blocks):
                if id(a) not in self.used and id(b) not in self.used:
                    self._take(a, b, is_proven=True)
        for one in self.evidence.classes:
            if one.is_weak and one.is_shared:
                self._pair_last_ids(one)

    def _pair_last_ids(self, one: ValueClass) -> None:
        """Pair integers that both sides have, like the tokens a model gets, if one entry of each side is left."""
        ours, theirs = (self._free(item.entry for item in some) for some in one.members)
        is_clear = len(ours) == len(theirs) == 1 and len(np.unique(one.head.sample)) >= _FEW_IDS
        if is_clear and one.head.tolerance == 0.0 and not are_named_apart(ours[0], theirs[0]):
            self._take(ours[0], theirs[0], is_proven=True)

    def _choices(self, one: ValueClass, blocks: dict[Block, Block]) -> Iterator[tuple[Entry, Entry]]:
        ours, theirs = ([item.entry for item in some] for some in one.members)
        if len(ours) * len(theirs) > _MOST_CHOICES:
            return
        lonely = (
            [a for a in self._free(ours) if self._is_alone(a)],
            [b for b in self._free(theirs) if self._is_alone(b)],
        )
        pairs = [(a, b) for a in self._free(ours) for b in self._free(theirs) if self._may_cross(a, b, lonely, blocks)]
        pairs.sort(key=lambda pair: self._preference(pair[0], pair[1], blocks))
        yield from pairs

    # --- a second partner ------------------------------------------------------------------------------

    def pair_second_sums(self) -> list[LearnedPair]:
        """Pair the parts of a sum that is also there whole and has a pair already."""
        before = len(self.pairs)
        for ours in self.matches.reference:
            other = self.matches.of_reference.get(id(ours))
            if other is not None:
                self._pair_second_sums_of(ours.outputs, self._free(other.outputs))
                self._pair_second_sums_of(ours.inputs, self._free(other.inputs))
        return self.pairs[before:]

    def take_all(self, pairs: Iterable[LearnedPair]) -> list[LearnedPair]:
        """Take pairs that were found elsewhere."""
        taken = list(pairs)
        self.pairs += taken
        self.used |= {id(part) for pair in taken for one in pair[:2] for part in one.parts}
        return taken

    def pair_second_partners(self) -> list[LearnedPair]:
        """Pair entries of the candidate whose partner already has a pair: a result that is the next layer's input.

        The reference is put in a view, so that it may be in several pairs; if shapes need no view, the first pair is
        enough.
        """
        before, blocks = len(self.pairs), self.matches.blocks()
        for one in self.evidence.classes:
            if one.is_weak or not one.is_shared or len(one.members[0]) * len(one.members[1]) > _MOST_CHOICES:
                continue
            for theirs in self._free(item.entry for item in one.members[1]):
                fitting = [
                    item.entry for item in one.members[0] if self._may_be_second_partner(item.entry, theirs, blocks)
                ]
                if fitting:
                    chosen = min(fitting, key=lambda ours: self._preference(ours, theirs, blocks))
                    self._take_second_partner(chosen, Formula((theirs,)), is_proven=one.is_proof)
        return self.pairs[before:]

    def _may_be_second_partner(self, ours: Entry, theirs: Entry, blocks: dict[Block, Block]) -> bool:
        """Whether an entry may be a second partner of another.

        An input may not be one of an output: it would be blamed in the output's place.
        """
        nodes = self.matches.node_of[id(ours)], self.matches.node_of[id(theirs)]
        is_later = theirs.is_input and not ours.is_input
        return not is_later and _has_batch_of_one(ours, theirs) and fits_blocks(nodes[0], nodes[1], blocks)

    def _pair_second_sums_of(self, ours: list[Entry], theirs: list[Entry]) -> None:
        for entry in ours:
            for a, b in combinations(self._free(theirs), 2):
                if not _has_batch_of_one(entry, a):
                    continue
                is_equal = _is_sum_of(entry, a, b)
                if is_equal or self._is_sum_on_one_side(entry, a, b, 0):
                    self._take_second_partner(entry, Formula((a, b), _SUM), is_proven=is_equal)
                    break

    def _take_second_partner(self, reference: Entry, candidate: Formula, *, is_proven: bool) -> None:
        self.pairs.append(LearnedPair(Formula((reference,), "flatten({0}, 0, 1)"), candidate, is_proven, True))
        self.used |= {id(part) for part in candidate.parts}

    def _preference(self, a: Entry, b: Entry, blocks: dict[Block, Block]) -> tuple[object, ...]:
        """Sort key: the same direction, the same block, similar names."""
        ours, theirs = self.matches.node_of[id(a)], self.matches.node_of[id(b)]
        same_block = (ours.block and blocks.get(ours.block)) == theirs.block
        return a.is_input != b.is_input, a.is_input, not same_block, -likeness(ours.tail, theirs.tail)

    def _is_alone(self, entry: Entry) -> bool:
        node = self.matches.node_of[id(entry)]
        return id(node) not in self.matches.of_reference and id(node) not in self.matches.of_candidate

    def _may_cross(
        self, a: Entry, b: Entry, lonely: tuple[list[Entry], list[Entry]], blocks: dict[Block, Block]
    ) -> bool:
        ours, theirs = self.matches.node_of[id(a)], self.matches.node_of[id(b)]
        if not fits_blocks(ours, theirs, blocks) and a.is_input == b.is_input:
            return False
        if a.is_input and b.is_input:
            return a in lonely[0] and b in lonely[1]
        return True
