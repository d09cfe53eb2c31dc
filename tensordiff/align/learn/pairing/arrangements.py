"""Arrangements: layers with the same ports as others, for which values prove what the ports mean.

A norm of vLLM gets a result and its residual separately, where the reference's gets their sum. Healthy blocks prove
that. Beyond the first error nothing does, and equal names would pair the reference's only input with one part of the
sum.

So what is proven for layers of one arrangement holds for all others of it: layers with the same ports, the same
relations among their shapes and, if known, the same classes, on both sides. If values prove in any of them that one
part alone is the reference's tensor, nothing follows. A name is overruled only if the sum is much closer than what the
name pairs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tensordiff.align.index import port_of
from tensordiff.align.learn.evidence import cosine
from tensordiff.align.learn.nodes import Node, NodeMatches
from tensordiff.align.learn.pairing.ports import Formula, LearnedPair
from tensordiff.dump.dtypes import is_integral
from tensordiff.dump.model import Entry
from tensordiff.errors import AlignError, DumpError

_NEARER = 0.5
"""The share of the distance (1 less the cosine) of the pair by name that a formula may have, to be preferred."""


class Port(NamedTuple):
    """A port of a node."""

    is_input: bool
    name: str


class Layout(NamedTuple):
    """The ports of one node, and what kind of module it is."""

    module_class: str | None
    has_children: bool
    ports: tuple[tuple[Port, bool, int], ...]
    """Each with whether it holds integers, and the index of the first port with the same shape."""


class Meaning(NamedTuple):
    """A pair of formulas over the ports of a node, whichever node it is."""

    reference: tuple[Port, ...]
    candidate: tuple[Port, ...]
    templates: tuple[str, str]
    views: tuple[str, str]

    def is_part_of(self, whole: Meaning) -> bool:
        """Whether it says that one part of a sum is the whole."""
        is_plain = len(self.reference) == len(self.candidate) == 1
        return is_plain and self.reference[0] in whole.reference and self.candidate[0] in whole.candidate


Arrangement = tuple[Layout, Layout]


@dataclass(eq=False)
class Arrangements:
    """What the proven pairs of some nodes say about others that have the same ports."""

    matches: NodeMatches
    pairs: Sequence[LearnedPair]
    names: Mapping[int, Entry]
    """The pairs by name, by id, from either side."""

    def missing(self) -> Iterator[LearnedPair]:
        """Pairs that other nodes prove, for nodes whose own ports nothing else explains."""
        whole = {id(part) for pair in self.pairs if not pair.is_second_partner for part in pair.reference.parts}
        used = {id(part) for pair in self.pairs for part in pair.candidate.parts}
        for ours, theirs, arrangement in self._matched:
            for meaning, example in self._meanings.get(arrangement, {}).items():
                sides = _parts(ours, meaning.reference), _parts(theirs, meaning.candidate)
                is_taken = not example.is_second_partner and any(id(part) in whole for part in sides[0])
                if is_taken or any(id(part) in used for part in sides[1]):
                    continue
                formulas = example.reference._replace(parts=sides[0]), example.candidate._replace(parts=sides[1])
                pair = LearnedPair(*formulas, is_proven=False, is_second_partner=example.is_second_partner)
                if self._contradicts_names(pair) is not None:
                    whole |= set() if pair.is_second_partner else set(map(id, sides[0]))
                    used |= set(map(id, sides[1]))
                    yield pair

    def beat_names(self, pairs: Sequence[LearnedPair]) -> bool:
        """Whether pairs that only other nodes prove contradict names, and are closer by value than those by name."""
        against = [self._contradicts_names(pair) for pair in pairs]
        return any(against) and None not in against

    def _contradicts_names(self, pair: LearnedPair) -> bool | None:
        """Whether names pair the parts of a pair differently; None if the names may be right."""
        if pair.is_proven or not self._is_proven_elsewhere(pair):
            return None
        parts = {id(part) for part in (*pair.reference.parts, *pair.candidate.parts)}
        ours = [(one, self.names[id(one)]) for one in pair.reference.parts if id(one) in self.names]
        theirs = [(self.names[id(one)], one) for one in pair.candidate.parts if id(one) in self.names]
        is_plain = len(parts) == 2
        named = [both for both in (*ours, *theirs) if not is_plain or not {id(one) for one in both} <= parts]
        return bool(named) if all(self._is_worse(*both, pair) for both in named) else None

    def _is_worse(self, ours: Entry, theirs: Entry, pair: LearnedPair) -> bool:
        if self.matches.evidence.is_same(ours, theirs):
            return False
        apart = _distance(Formula((ours,)), Formula((theirs,)))
        return _distance(pair.reference, pair.candidate) <= _NEARER * apart

    def _is_proven_elsewhere(self, pair: LearnedPair) -> bool:
        """Whether nodes of the same arrangement prove what a pair says."""
        of_nodes = self._nodes_of(pair)
        arrangement = None if of_nodes is None else self._arrangement(*of_nodes)
        return arrangement is not None and _meaning(pair) in self._meanings.get(arrangement, {})

    # --- what is proven ----------------------------------------------------------------------------------

    @cached_property
    def _meanings(self) -> dict[Arrangement, dict[Meaning, LearnedPair]]:
        """What all nodes with a sum prove for their arrangement, each with an example."""
        by_arrangement: dict[Arrangement, list[dict[Meaning, LearnedPair]]] = defaultdict(list)
        for ours, _, arrangement in self._matched:
            by_arrangement[arrangement].append(self._proven.get(id(ours), {}))
        meanings = {arrangement: _common(some) for arrangement, some in by_arrangement.items()}
        return {arrangement: some for arrangement, some in meanings.items() if some}

    @cached_property
    def _proven(self) -> dict[int, dict[Meaning, LearnedPair]]:
        """What values prove about the ports of matched nodes, by the ids of the reference's nodes."""
        proven: dict[int, dict[Meaning, LearnedPair]] = defaultdict(dict)
        for pair in self.pairs:
            nodes = self._nodes_of(pair) if pair.is_proven else None
            if nodes is not None:
                proven[id(nodes[0])][_meaning(pair)] = pair
        return proven

    def _nodes_of(self, pair: LearnedPair) -> tuple[Node, Node] | None:
        """The two matched nodes of a pair; None if it involves more nodes, or nodes that are not matched."""
        ours, theirs = ([self.matches.node_of[id(part)] for part in one.parts] for one in pair[:2])
        is_of_two = all(node is ours[0] for node in ours) and all(node is theirs[0] for node in theirs)
        return (ours[0], theirs[0]) if is_of_two and self.matches.of_reference.get(id(ours[0])) is theirs[0] else None

    @cached_property
    def _matched(self) -> list[tuple[Node, Node, Arrangement]]:
        both = ((node, self.matches.of_reference.get(id(node))) for node in self.matches.reference)
        pairs = [(ours, theirs) for ours, theirs in both if theirs is not None]
        return [(*pair, arrangement) for pair in pairs if (arrangement := self._arrangement(*pair)) is not None]

    def _arrangement(self, ours: Node, theirs: Node) -> Arrangement | None:
        layouts = _layout(ours), _layout(theirs)
        return None if layouts[0] is None or layouts[1] is None else (layouts[0], layouts[1])


def _common(proven: Sequence[dict[Meaning, LearnedPair]]) -> dict[Meaning, LearnedPair]:
    """What all nodes that prove a sum prove about it; empty if any node proves a part to be the whole."""
    examples = [some for some in proven if any(pair.is_sum for pair in some.values())]
    if not examples:
        return {}
    shared = {meaning: pair for meaning, pair in examples[0].items() if all(meaning in some for some in examples)}
    sums = [meaning for meaning, pair in shared.items() if pair.is_sum]
    if any(meaning.is_part_of(whole) for some in proven for meaning in some for whole in sums):
        return {}
    ours, theirs = {one.reference for one in sums}, {one.candidate for one in sums}
    return {
        meaning: pair for meaning, pair in shared.items() if meaning.reference in ours or meaning.candidate in theirs
    }  # fmt: skip


def _meaning(pair: LearnedPair) -> Meaning:
    ours, theirs = pair.reference, pair.candidate
    ports = tuple(map(_port, ours.parts)), tuple(map(_port, theirs.parts))
    return Meaning(ports[0], ports[1], (ours.template, theirs.template), (ours.view, theirs.view))


def _port(entry: Entry) -> Port:
    return Port(entry.is_input, port_of(entry.port))


def _parts(node: Node, ports: Sequence[Port]) -> tuple[Entry, ...]:
    entries = {_port(entry): entry for entry in (*node.inputs, *node.outputs)}
    return tuple(entries[port] for port in ports)


def _layout(node: Node) -> Layout | None:
    """The ports of a node; None if one cannot be read."""
    try:
        specs = [(_port(entry), entry.spec) for entry in (*node.inputs, *node.outputs)]
    except (DumpError, AlignError):
        return None  # measuring reports it
    shapes = [spec.shape for _, spec in specs]
    ports = tuple((port, is_integral(spec.dtype), shapes.index(spec.shape)) for port, spec in specs)
    return Layout(node.module_class, bool(node.children), ports)


def _distance(ours: Formula, theirs: Formula) -> float:
    """How far two formulas point apart: 1 less their cosine, and 2 (the maximum) if it is not known."""
    try:
        a, b = (one.read().reshape(-1).astype("float64") for one in (ours, theirs))
    except (DumpError, AlignError):
        return 2.0
    return 1.0 - cosine(a, b) if a.size == b.size else 2.0
