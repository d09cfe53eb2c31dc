"""The order of axes of a whole run: a candidate with tokens before batch has them so in all layers.

Past the last block, after an error, nothing is equal, and differing shapes keep structure from matching what is there.
If all proven pairs need the same permutation of axes, the remaining layers there, in order, need it, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from tensordiff.align.learn.nodes import Node, NodeMatches
from tensordiff.align.learn.pairing.ports import Formula, LearnedPair
from tensordiff.align.views import reconcile
from tensordiff.dump.model import Entry
from tensordiff.errors import AlignError, DumpError

_PERMUTE = "permute "
_LEAST = 4
"""How many pairs must be proven to have the permutation."""


def pairs_in_layout(matches: NodeMatches, pairs: Iterable[LearnedPair], used: Collection[int]) -> list[LearnedPair]:
    """Pairs of what is left outside all blocks, if both sides have equally many layers and all shapes fit.

    For matched layers, pairs of their remaining ports that fit. ``used`` are ids of entries that have a pair.
    """
    views = [pair.reference.view for pair in pairs if pair.is_proven and len(pair.reference.parts) == 1]
    is_clear = len(views) >= _LEAST and len(set(views)) == 1 and views[0].startswith(_PERMUTE)
    if not is_clear or not matches.evidence.is_ordered:
        return []
    others = _of_others(matches)
    fitting = [(a, b) for a, b in _of_matched(matches, used) if _fits(a, b, views[0])]
    fitting += others if all(_fits(a, b, views[0]) for a, b in others) else []
    return [LearnedPair(Formula((a,), view=views[0]), Formula((b,)), is_proven=False) for a, b in fitting]


def _of_matched(matches: NodeMatches, used: Collection[int]) -> Iterator[tuple[Entry, Entry]]:
    """The remaining ports of matched layers, in order, if both have equally many."""
    for ours in matches.reference:
        theirs = matches.of_reference.get(id(ours))
        if theirs is None or ours.block is not None or theirs.block is not None:
            continue
        for both in ((ours.inputs, theirs.inputs), (ours.outputs, theirs.outputs)):
            left = [[entry for entry in some if id(entry) not in used] for some in both]
            if len(left[0]) == len(left[1]):
                yield from zip(*left, strict=True)


def _of_others(matches: NodeMatches) -> list[tuple[Entry, Entry]]:
    """The ports of unmatched layers, in order, if both sides have equally many, with equally many ports."""
    ours = [node for node in matches.reference if node.block is None and id(node) not in matches.of_reference]
    theirs = [node for node in matches.candidate if node.block is None and id(node) not in matches.of_candidate]
    if len(ours) != len(theirs) or not all(map(_have_as_many_ports, ours, theirs)):
        return []
    return [both for one, other in zip(ours, theirs, strict=True) for both in _ports(one, other)]


def _have_as_many_ports(ours: Node, theirs: Node) -> bool:
    return len(ours.inputs) == len(theirs.inputs) and len(ours.outputs) == len(theirs.outputs)


def _ports(ours: Node, theirs: Node) -> Iterator[tuple[Entry, Entry]]:
    yield from zip(ours.inputs, theirs.inputs, strict=True)
    yield from zip(ours.outputs, theirs.outputs, strict=True)


def _fits(ours: Entry, theirs: Entry, view: str) -> bool:
    """Whether one shape is another with its axes permuted."""
    axes = [int(axis) for axis in view.removeprefix(_PERMUTE).split()]
    try:
        before, after = ours.spec.shape, theirs.spec.shape
    except (DumpError, AlignError):
        return False
    return len(axes) == len(before) and reconcile(tuple(before[axis] for axis in axes), after) is not None
