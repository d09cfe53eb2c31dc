"""Structure: matching nodes by what surrounds them, where values no longer say anything.

If ``gate`` and ``up`` are matched, so is the module they are in, and what is left of its parts. Each match needs a
reason, and no other node with one as good: equal inputs, an output that goes where its partner's goes, values that
resemble each other, a name that was seen elsewhere, parts that are the same in number and order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from tensordiff.align.compatibility import could_be_same
from tensordiff.align.learn.nodes import (
    Block,
    Node,
    NodeMatches,
    fits_blocks,
    gets_other_shapes,
    have_same_class,
    likeness,
)
from tensordiff.dump.dtypes import is_integral
from tensordiff.dump.model import Entry
from tensordiff.errors import AlignError, DumpError

_ENOUGH, _MARGIN = 1.0, 0.4  # the sum of reasons that a match needs, and its lead over the next best
_ROUNDS = 12
_CROWD = 16  # nodes with a common input; with more, that input says nothing
_MOST_PAIRS = 20_000
Tails = tuple[str, str]


class _Fit(NamedTuple):
    reasons: float
    ours: Node
    theirs: Node


@dataclass(eq=False)
class Structure:
    """Extends matches to the nodes around them."""

    matches: NodeMatches
    tails: set[Tails] = field(default_factory=set)
    """Ends of names that matched nodes have."""

    def match_all(self) -> None:
        """Match until nothing more can be matched; without any match there is nothing to start from."""
        if not self.matches.of_reference:
            return
        for _ in range(_ROUNDS):
            before = len(self.matches.of_reference)
            self._learn_tails()
            self._match_containers()
            self._match_fits(list(self._fits()))
            if len(self.matches.of_reference) == before:
                self._match_copies()
            if len(self.matches.of_reference) == before:
                return

    def _learn_tails(self) -> None:
        for ours in self.matches.reference:
            theirs = self.matches.of_reference.get(id(ours))
            if theirs is not None:
                self.tails.add((ours.tail, theirs.tail))

    # --- modules, by what is in them -----------------------------------------------------------------

    def _match_containers(self) -> None:
        votes: dict[tuple[int, int], list[tuple[Node, Node]]] = defaultdict(list)
        for child in self.matches.reference:
            other = self.matches.of_reference.get(id(child))
            ours, theirs = child.parent, other.parent if other else None
            if ours and theirs and self.matches.are_free(ours, theirs):
                votes[id(ours), id(theirs)].append((ours, theirs))
        chosen = sorted(votes.values(), key=lambda pairs: (-len(pairs), pairs[0][0].position))
        for pairs in chosen:
            ours, theirs = pairs[0]
            rivals = [other for other in chosen if (other[0][0] is ours) != (other[0][1] is theirs)]
            is_clear = all(len(pairs) > len(other) for other in rivals) and self._are_most(len(pairs), ours, theirs)
            if is_clear and self.matches.are_free(ours, theirs) and not self._is_refuted(ours, theirs):
                self.matches.take(ours, theirs)

    def _match_copies(self) -> None:
        """Match nodes that repeat the output of matched nodes, if each side has one.

        A model, for example, returns the logits of its head.
        """
        for ours in self.matches.reference:
            theirs = self.matches.of_reference.get(id(ours))
            if theirs is None:
                continue
            copies = [
                (a, b)
                for a in self._copied(ours, 0)
                for b in self._copied(theirs, 1)
                if self.matches.are_free(a, b) and not gets_other_shapes(a, b)
            ]
            if len(copies) == 1:
                self.matches.take(*copies[0])

    def _copied(self, node: Node, side: int) -> Iterable[Node]:
        """Other nodes with the same output as a node."""
        classes = (self.matches.evidence.class_of.get(id(entry)) for entry in node.outputs)
        items = (item for one in classes if one is not None and not one.is_weak for item in one.members[side])
        nodes = (self.matches.node_of[id(item.entry)] for item in items if not item.entry.is_input)
        return {id(other): other for other in nodes if other is not node}.values()

    def _are_most(self, count: int, ours: Node, theirs: Node) -> bool:
        """Whether so many parts are most of the matched ones of both modules."""
        matched = sum(id(child) in self.matches.of_reference for child in ours.children)
        others = sum(id(child) in self.matches.of_candidate for child in theirs.children)
        return 2 * count > max(matched, others)

    # --- what is left in a module, or in a block ------------------------------------------------------

    def _match_fits(self, fits: list[_Fit]) -> None:
        best: dict[int, list[float]] = defaultdict(list)
        for fit in fits:
            best[id(fit.ours)].append(fit.reasons)
            best[id(fit.theirs)].append(fit.reasons)
        for fit in sorted(fits, key=lambda fit: (-fit.reasons, fit.ours.position, fit.theirs.position)):
            is_clear = all(_is_best(fit.reasons, best[id(node)]) for node in (fit.ours, fit.theirs))
            if fit.reasons >= _ENOUGH and is_clear and self.matches.are_free(fit.ours, fit.theirs):
                self.matches.take(fit.ours, fit.theirs)

    def _fits(self) -> Iterator[_Fit]:
        blocks = self.matches.blocks()
        seen: set[tuple[int, int]] = set()
        for ours, theirs in (*self._groups_by_module(blocks), *self._groups_by_input()):
            if len(ours) * len(theirs) > _MOST_PAIRS:
                continue  # nothing around so many nodes side by side distinguishes them
            alike = _same_sequence(ours, theirs, self.matches)
            for a in ours:
                for b in theirs:
                    if (id(a), id(b)) in seen or not self.matches.are_free(a, b):
                        continue
                    seen.add((id(a), id(b)))
                    if self._could_be(a, b, blocks):
                        yield _Fit(self._reasons(a, b, alike), a, b)

    def _groups_by_input(self) -> Iterator[tuple[list[Node], list[Node]]]:
        """Nodes of both sides that get the same tensor."""
        for one in self.matches.evidence.classes:
            if one.is_weak or not one.is_shared:
                continue
            nodes = [
                {
                    id(node): node
                    for item in some
                    if item.entry.is_input and (node := self.matches.node_of[id(item.entry)])
                }
                for some in one.members
            ]
            if max(map(len, nodes)) <= _CROWD:
                yield list(nodes[0].values()), list(nodes[1].values())

    def _groups_by_module(self, blocks: Mapping[Block, Block]) -> Iterator[tuple[list[Node], list[Node]]]:
        """Nodes of both sides that are in the same module, and then all that are in the same block, or in none."""
        groups: dict[object, tuple[list[Node], list[Node]]] = defaultdict(lambda: ([], []))
        back = {theirs: ours for ours, theirs in blocks.items()}
        for side, nodes in enumerate((self.matches.reference, self.matches.candidate)):
            partner = (self.matches.of_reference, self.matches.of_candidate)[side]
            for node in nodes:
                if node.parent is not None and id(node.parent) in partner:
                    groups[id(node.parent) if side == 0 else id(partner[id(node.parent)])][side].append(node)
        for side, nodes in enumerate((self.matches.reference, self.matches.candidate)):
            for node in nodes:
                block = node.block if side == 0 or node.block is None else back.get(node.block, node.block)
                groups["block", block][side].append(node)
        for ours, theirs in groups.values():
            if any(id(n) not in self.matches.of_reference for n in ours) and any(
                id(n) not in self.matches.of_candidate for n in theirs
            ):
                yield ours, theirs

    def _could_be(self, ours: Node, theirs: Node, blocks: Mapping[Block, Block]) -> bool:
        if not fits_blocks(ours, theirs, blocks) or self._parents_have_other_partners(ours, theirs):
            return False
        return _have_alike_ports(ours, theirs) and not self._is_refuted(ours, theirs)

    def _parents_have_other_partners(self, ours: Node, theirs: Node) -> bool:
        """Whether the modules they are in are matched with others."""
        if ours.parent is None or theirs.parent is None:
            return False
        partner = self.matches.of_reference.get(id(ours.parent), theirs.parent)
        back = self.matches.of_candidate.get(id(theirs.parent), ours.parent)
        return partner is not theirs.parent and back is not ours.parent

    def _is_refuted(self, ours: Node, theirs: Node) -> bool:
        """Whether everything known about their outputs, or about their inputs, is that they are different tensors."""
        is_one = len(ours.outputs) == len(theirs.outputs) == 1  # two of several may add up to the other side's only one
        if is_one and self.matches.evidence.have_other_partners(ours.outputs[0], theirs.outputs[0]):
            return True
        return self._are_different(ours.outputs, theirs.outputs) or self._are_different(ours.inputs, theirs.inputs)

    def _are_different(self, ours: list[Entry], theirs: list[Entry]) -> bool:
        evidence, refuted = self.matches.evidence, False
        for a in ours:
            for b in theirs:
                if evidence.is_same(a, b):
                    return False
                refuted = refuted or (could_be_same(a, b) and self.matches.are_different(a, b))
        return refuted

    def _reasons(self, ours: Node, theirs: Node, alike: set[tuple[int, int]]) -> float:
        evidence = self.matches.evidence
        reasons = 1.0 * any(evidence.is_same(a, b) for a in ours.inputs for b in theirs.inputs)
        reasons += 1.0 * self._has_matching_neighbours(ours, theirs)
        reasons += 1.5 * any(evidence.is_same(a, b) for a in ours.outputs for b in theirs.outputs)
        reasons += 1.0 * ((ours.tail, theirs.tail) in self.tails)
        name = likeness(ours.tail, theirs.tail)
        reasons += 1.0 if name == 1.0 else 0.5 * (name >= 0.75)
        reasons += 0.3 * have_same_class(ours, theirs)
        reasons += 0.5 * _changes_shape(ours) + 0.6 * self._has_rare_shape(ours, theirs)
        reasons -= 0.6 * (bool(ours.children) != bool(theirs.children))
        return reasons + 1.0 * ((id(ours), id(theirs)) in alike)

    def _has_rare_shape(self, ours: Node, theirs: Node) -> bool:
        """Whether no other leaf of either side has so many output values."""
        return all(
            self._sizes[side][_size(node)] == 1 for side, node in enumerate((ours, theirs)) if not node.children
        ) and not (ours.children or theirs.children)

    @cached_property
    def _sizes(self) -> tuple[Counter[int], Counter[int]]:
        ours, theirs = (
            Counter(_size(node) for node in nodes if not node.children)
            for nodes in (self.matches.reference, self.matches.candidate)
        )
        return ours, theirs

    def _has_matching_neighbours(self, ours: Node, theirs: Node) -> bool:
        """Whether an output is also that of a matched module, or the input of a matched node, on both sides alike."""
        for direction in ("outputs", "inputs"):
            a = self._neighbours(getattr(ours, direction), ours)
            b = self._neighbours(getattr(theirs, direction), theirs)
            if any((id(self.matches.of_reference.get(node)), way) in b for node, way in a):
                return True
        return False

    def _neighbours(self, entries: list[Entry], node: Node) -> set[tuple[int, bool]]:
        """The nodes that have one of these tensors, too, and whether as an input."""
        neighbours: set[tuple[int, bool]] = set()
        for entry in entries:
            one = self.matches.evidence.class_of.get(id(entry))
            if one is None or one.is_weak:
                continue
            for some in one.members:
                for item in some:
                    other = self.matches.node_of[id(item.entry)]
                    if other is not node:
                        neighbours.add((id(other), item.entry.is_input))
        return neighbours


def _size(node: Node) -> int:
    """The number of values in a node's outputs."""
    try:
        return sum(entry.spec.size for entry in node.outputs)
    except (DumpError, AlignError):
        return 0


def _is_best(reasons: float, of: list[float]) -> bool:
    """Whether a fit is clearly the best of all that one node has."""
    ordered = sorted(of, reverse=True)
    return reasons >= ordered[0] and (len(ordered) == 1 or ordered[1] <= reasons - _MARGIN)


def _same_sequence(ours: list[Node], theirs: list[Node], matches: NodeMatches) -> set[tuple[int, int]]:
    """Pairs of nodes at the same place of two groups that have the same nodes in the same order, as far as is known."""
    if len(ours) != len(theirs) or len(ours) < 2 or not any(id(node) in matches.of_reference for node in ours):
        return set()
    is_ordered = matches.evidence.is_ordered
    left = [[n for n in some if id(n) not in known] for some, known in
            ((ours, matches.of_reference), (theirs, matches.of_candidate))]  # fmt: skip
    if not is_ordered:
        if len(ours) < 3 or ours[0].parent is None:
            return set()
        return {(id(left[0][0]), id(left[1][0]))} if len(left[0]) == len(left[1]) == 1 else set()
    pairs = list(zip(*(sorted(some, key=lambda n: n.position) for some in (ours, theirs)), strict=True))
    for a, b in pairs:
        if matches.of_reference.get(id(a), b) is not b or matches.of_candidate.get(id(b), a) is not a:
            return set()
        if bool(a.children) != bool(b.children) or not _have_alike_ports(a, b):
            return set()
    return {(id(a), id(b)) for a, b in pairs}


def _have_alike_ports(ours: Node, theirs: Node) -> bool:
    """Whether the shapes of outputs, and of inputs if both have some, allow two nodes to be the same."""
    for a, b in ((ours.outputs, theirs.outputs), (ours.inputs, theirs.inputs)):
        if bool(a) and bool(b) and not any(could_be_same(x, y) for x in _floats(a) for y in _floats(b)):
            return False
    return bool(ours.outputs) == bool(theirs.outputs)


def _floats(entries: list[Entry]) -> list[Entry]:
    def is_float(entry: Entry) -> bool:
        try:
            return not is_integral(entry.spec.dtype)
        except (DumpError, AlignError):
            return False

    return [entry for entry in entries if is_float(entry)] or entries


def _changes_shape(node: Node) -> bool:
    """Whether a node's outputs have other shapes than its inputs, which is rare."""
    try:
        shapes = {entry.spec.shape for entry in _floats(node.inputs)}, {e.spec.shape for e in _floats(node.outputs)}
    except (DumpError, AlignError):
        return False
    return bool(shapes[0]) and bool(shapes[1]) and not shapes[0] & shapes[1]
