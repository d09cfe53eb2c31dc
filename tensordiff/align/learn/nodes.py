"""Nodes: which layer of one side is which of the other, by their inputs and outputs.

A node is one call of a layer. Two nodes are the same if an output of both is the same tensor. If several fit, inputs
decide that are the same, too, then depth, class, name and place in the order. Names count least.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property, lru_cache
from typing import NamedTuple

from tensordiff.align.compatibility import could_be_same
from tensordiff.align.learn.evidence import Evidence, Side, ValueClass
from tensordiff.align.learn.outline import SEPARATORS, Outline
from tensordiff.dump.model import Entry

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_WRAPPED = 1.2  # subtracted from the score if only one of two nodes is wrapped by another
_PASSED_ON = 0.8  # subtracted if only one of two nodes computes something
_CROWD = 24
"""A tensor that so many nodes have is no way to find one of them."""
Block = tuple[str, int]
"""The text before a block's number, and the number."""


@dataclass(eq=False)
class Node:
    """One call of a layer, with its inputs and outputs."""

    layer: str
    call: int
    outline: Outline
    inputs: list[Entry] = field(default_factory=list)
    outputs: list[Entry] = field(default_factory=list)
    position: int = 0
    """Where its last entry stands."""
    is_shared: bool = False
    """Whether its layer is called several times, like one that all blocks share."""
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)

    @property
    def block(self) -> Block | None:
        """The block it belongs to; a layer that is called for every block belongs to none."""
        numbers = self.outline.numbers
        return (self.outline.pieces[0], numbers[0]) if numbers and not self.is_shared else None

    @cached_property
    def depth(self) -> int:
        """How many modules of its block it is in."""
        parent = self.parent
        return 0 if parent is None or parent.block != self.block else parent.depth + 1

    @property
    def module_class(self) -> str | None:
        """The class of its module, if known."""
        return next((e.origin.module_class for e in (*self.outputs, *self.inputs) if e.origin), None)

    @cached_property
    def tail(self) -> str:
        """The part of its name after its parent's, with ``#`` for the numbers of blocks."""
        own = self.outline.with_numbers("#" * len(self.outline.numbers))
        if self.parent is None:
            return own
        outline = self.parent.outline
        return own[len(outline.with_numbers("#" * len(outline.numbers))) :]


def nodes_of(side: Side) -> list[Node]:
    """The nodes of one side, in the order they end, each with its parent."""
    nodes: dict[tuple[str, int], Node] = {}
    for entry in side.entries:
        layer = entry.layer
        node = nodes.get((layer, entry.call))
        if node is None:
            node = nodes[layer, entry.call] = Node(layer, entry.call, side.outlines[layer])
        (node.inputs if entry.is_input else node.outputs).append(entry)
        node.position = side.position[id(entry)]
    for (layer, call), node in nodes.items():
        node.is_shared = call > 1 or (layer, 2) in nodes
        node.parent = _parent(layer, call, nodes)
        if node.parent is not None:
            node.parent.children.append(node)
    return list(nodes.values())


def _parent(layer: str, call: int, nodes: Mapping[tuple[str, int], Node]) -> Node | None:
    for end in range(len(layer) - 1, 0, -1):
        if layer[end] in SEPARATORS:
            node = nodes.get((layer[:end], call)) or nodes.get((layer[:end], 1))
            if node is not None:
                return node
    return None


class Score(NamedTuple):
    """How well two nodes fit; compared as tuples."""

    total: float
    outputs: float
    inputs: float


@dataclass(eq=False)
class NodeMatches:
    """The nodes that are the same; grows as more are found."""

    evidence: Evidence
    reference: list[Node]
    candidate: list[Node]
    of_reference: dict[int, Node] = field(default_factory=dict)
    of_candidate: dict[int, Node] = field(default_factory=dict)
    foreign: set[int] = field(default_factory=set)
    """Nodes of the candidate that the reference does not have, by their ids."""

    @classmethod
    def of(cls, evidence: Evidence) -> NodeMatches:
        """Start without matches."""
        return cls(evidence, nodes_of(evidence.reference), nodes_of(evidence.candidate))

    def take(self, ours: Node, theirs: Node) -> None:
        """Match two nodes."""
        self.of_reference[id(ours)], self.of_candidate[id(theirs)] = theirs, ours

    def use_evidence(self, evidence: Evidence) -> None:
        """Continue with other evidence."""
        self.evidence = evidence
        self._common.clear()
        self._ranks.clear()

    def are_free(self, ours: Node, theirs: Node) -> bool:
        """Whether neither node is matched yet."""
        is_taken = id(ours) in self.of_reference or id(theirs) in self.of_candidate
        return not is_taken and id(theirs) not in self.foreign

    @cached_property
    def node_of(self) -> dict[int, Node]:
        """The node of each entry, by its id."""
        both = (*self.reference, *self.candidate)
        return {id(entry): node for node in both for entry in (*node.inputs, *node.outputs)}

    # --- by value ----------------------------------------------------------------------------------

    def match_by_value(self, named: Iterable[tuple[Node, Node]]) -> None:
        """Match nodes with an output that is proven to be the same; ``named`` are the pairs of nodes by name."""
        names = {(id(ours), id(theirs)) for ours, theirs in named}
        pairs = [pair for pair in self._candidates() if self.are_free(*pair)]
        rivals = Counter(id(node) for pair in pairs for node in pair)
        scored = [
            (self._score(a, b, names, is_alone=rivals[id(a)] == rivals[id(b)] == 1), a, b) for a, b in pairs
        ]  # fmt: skip
        self._take_best(scored)
        blocks = self.blocks()
        remaining = [
            (score, ours, theirs)
            for score, ours, theirs in scored
            if self.are_free(ours, theirs) and fits_blocks(ours, theirs, blocks)
        ]
        self._take_best(remaining)

    def _take_best(self, scored: list[tuple[Score, Node, Node]]) -> None:
        scored.sort(key=lambda item: (-item[0].total, item[1].position, item[2].position))
        blocks: dict[Block, Block] = {}
        for score, ours, theirs in scored:
            is_sure = score.outputs >= 0.5 and (score.inputs >= 0.5 or not (ours.inputs and theirs.inputs))
            if self.are_free(ours, theirs) and is_sure and fits_blocks(ours, theirs, blocks):
                self.take(ours, theirs)
                if ours.block and theirs.block and score.inputs == 1.0:
                    blocks.setdefault(ours.block, theirs.block)
        for score, ours, theirs in scored:
            if self.are_free(ours, theirs) and score.outputs > 0 and fits_blocks(ours, theirs, blocks):
                self.take(ours, theirs)

    def _candidates(self) -> Iterator[tuple[Node, Node]]:
        seen: set[tuple[int, int]] = set()
        for one in self.evidence.classes:
            if one.is_weak or not one.is_shared:
                continue
            ours, theirs = (list(self._producers(one, side)) for side in (0, 1))
            if len(ours) * len(theirs) > _CROWD**2:
                continue
            for a in ours:
                for b in theirs:
                    if (id(a), id(b)) not in seen:
                        seen.add((id(a), id(b)))
                        yield a, b

    def _producers(self, one: ValueClass, side: int) -> Iterable[Node]:
        nodes = (self.node_of[id(item.entry)] for item in one.members[side] if not item.entry.is_input)
        return {id(node): node for node in nodes}.values()

    def _score(self, ours: Node, theirs: Node, named: set[tuple[int, int]], *, is_alone: bool) -> Score:
        """How well two nodes fit; if they fit no others, only inputs and outputs are looked at."""
        outputs = self._share(ours.outputs, theirs.outputs)
        inputs = self._share(ours.inputs, theirs.inputs) or 0.5 * self._gets_same_ids(ours, theirs)
        if is_alone:
            return Score(4 * outputs + 3 * inputs, outputs, inputs)
        total = 4 * outputs + 3 * inputs + 0.3 * ((id(ours), id(theirs)) in named)
        total += 0.8 * (bool(ours.children) == bool(theirs.children))
        total += 0.5 * have_same_class(ours, theirs) + likeness(ours.tail, theirs.tail)
        total += 0.6 * self._same_rank(ours, theirs) + 0.4 * (ours.depth == theirs.depth)
        total -= 2.0 * gets_other_shapes(ours, theirs)
        total -= _WRAPPED * (self._is_wrapped(ours, 0) != self._is_wrapped(theirs, 1))
        total -= _PASSED_ON * (self.passes_on(ours) != self.passes_on(theirs))
        total -= 0.1 * abs(len(ours.outputs) - len(theirs.outputs))
        return Score(total, outputs, inputs)

    def _is_wrapped(self, node: Node, side: int) -> bool:
        """Whether a module contains only this node, and gives the same tensor: other sides know the module instead."""
        parent = node.parent
        if parent is None or len(parent.children) > 1:
            return False
        classes = (self.evidence.class_of.get(id(entry)) for entry in node.outputs)
        return any(other is parent for one in classes if one is not None for other in self._producers(one, side))

    def passes_on(self, node: Node) -> bool:
        """Whether a layer's output is its input, as for dropout outside of training."""
        inputs = (self.evidence.class_of.get(id(entry)) for entry in node.inputs)
        classes = {id(one) for one in inputs if one is not None and not one.is_weak}
        return any(id(self.evidence.class_of.get(id(entry))) in classes for entry in node.outputs)

    def _gets_same_ids(self, ours: Node, theirs: Node) -> bool:
        """Whether both get the same integers, as a model gets its tokens; many nodes may."""
        found = [{id(self.evidence.class_of.get(id(e))) for e in node.inputs if id(e) in self.evidence.class_of}
                 for node in (ours, theirs)]  # fmt: skip
        return any(self.evidence.class_of[id(e)].is_weak for e in ours.inputs
                   if id(e) in self.evidence.class_of and id(self.evidence.class_of[id(e)]) in found[1])  # fmt: skip

    def _share(self, ours: list[Entry], theirs: list[Entry]) -> float:
        a, b = (self._classes(some) for some in (ours, theirs))
        return len(a & b) / min(len(a), len(b)) if a and b else 0.0

    def _classes(self, entries: list[Entry]) -> set[int]:
        classes = (self.evidence.class_of.get(id(entry)) for entry in entries)
        return {id(one) for one in classes if one is not None and not one.is_weak and not self._is_common(one)}

    def _is_common(self, one: ValueClass) -> bool:
        """Whether many nodes get it, like the rope tables that all layers share."""
        known = self._common.get(id(one))
        if known is None:
            layers = [{self.node_of[id(item.entry)].block for item in some} for some in one.members]
            known = self._common[id(one)] = max(map(len, layers)) > 3
        return known

    @cached_property
    def _common(self) -> dict[int, bool]:
        return {}

    def _same_rank(self, ours: Node, theirs: Node) -> float:
        """Whether both are the first, or the last, of the nodes that give this tensor."""
        ranks = [self._rank(node, side) for side, node in enumerate((ours, theirs))]
        return 0.5 * (ranks[0][0] == ranks[1][0]) + 0.5 * (ranks[0][1] == ranks[1][1])

    def _rank(self, node: Node, side: int) -> tuple[int, int]:
        known = self._ranks.get(id(node))
        if known is None:
            classes = [self.evidence.class_of.get(id(entry)) for entry in node.outputs]
            one = next((one for one in classes if one is not None and one.is_shared), None)
            peers = sorted(self._producers(one, side), key=_depth_first) if one is not None else [node]
            at = peers.index(node)
            known = self._ranks[id(node)] = at, len(peers) - 1 - at
        return known

    @cached_property
    def _ranks(self) -> dict[int, tuple[int, int]]:
        return {}

    def has_free(self, entry: Entry) -> bool:
        """Whether a tensor was found on the other side, in the same direction, at a node that is not matched yet."""
        one = self.evidence.class_of.get(id(entry))
        if one is None or one.is_weak or not one.is_shared:
            return False
        here = any(item.entry is entry for item in one.members[0])
        matched = self.of_candidate if here else self.of_reference
        return any(
            item.entry.is_input == entry.is_input and id(self.node_of[id(item.entry)]) not in matched
            for item in one.members[1 if here else 0]
        )

    def are_different(self, ours: Entry, theirs: Entry) -> bool:
        """Whether two entries are different tensors, one of which was found elsewhere and may still be matched."""
        return self.evidence.are_different(ours, theirs) and (self.has_free(ours) or self.has_free(theirs))

    # --- blocks ------------------------------------------------------------------------------------

    def blocks(self) -> dict[Block, Block]:
        """Which block is which: by most of the matched nodes in them, and by counting on from these."""
        votes: dict[Block, dict[Block, int]] = defaultdict(lambda: defaultdict(int))
        for ours in self.reference:
            theirs = self.of_reference.get(id(ours))
            if theirs is not None and ours.block and theirs.block:
                votes[ours.block][theirs.block] += 1
        known = {ours: max(counts, key=lambda block: (counts[block], block)) for ours, counts in votes.items()}
        return {**self._extrapolated(known), **known}

    def _extrapolated(self, known: Mapping[Block, Block]) -> dict[Block, Block]:
        """The blocks without matched nodes, counted on from those with some."""
        ours, theirs = ({node.block for node in some if node.block} for some in (self.reference, self.candidate))
        offsets = {(a[0], b[0], b[1] - a[1]) for a, b in known.items()}
        extrapolated: dict[Block, Block] = {}
        for before, after, offset in offsets:
            is_one = sum((before, after) == other[:2] for other in offsets) == 1
            for prefix, number in ours if is_one else ():
                if prefix == before and (after, number + offset) in theirs:
                    extrapolated[prefix, number] = after, number + offset
        return extrapolated


def fits_blocks(ours: Node, theirs: Node, blocks: Mapping[Block, Block]) -> bool:
    """Whether two nodes may be the same, as far as it is known which block is which."""
    if ours.block is None or theirs.block is None:
        return True
    wanted = blocks.get(ours.block)
    return wanted is None or wanted == theirs.block or wanted[0] != theirs.block[0]


def _depth_first(node: Node) -> tuple[int, int]:
    """Sort key: a module gives its output after what is inside it."""
    return -sum(node.layer.count(mark) for mark in "./"), node.position


def gets_other_shapes(ours: Node, theirs: Node) -> bool:
    """Whether no input of one node could be an input of the other."""
    a, b = ours.inputs, theirs.inputs
    return bool(a) and bool(b) and not any(could_be_same(x, y) for x in a for y in b)


def have_same_class(ours: Node, theirs: Node) -> bool:
    """Whether the modules of both are known to be of one class."""
    return ours.module_class is not None and ours.module_class == theirs.module_class


@lru_cache(maxsize=1 << 14)
def likeness(ours: str, theirs: str) -> float:
    """How alike two names are, from 0 to 1, regardless of how their words are separated and capitalized."""
    a, b = ("".join(_WORDS.findall(name)).lower() for name in (ours, theirs))
    return SequenceMatcher(None, a, b, autojunk=False).ratio() if a and b else 0.0
