"""The layout of a whole run: a candidate that has its tokens before its batch has them so in all layers.

Past the last block and an error, nothing is equal, and shapes that differ keep structure from matching what is there.
If all pairs that are proven need one and the same order of axes, what is left there, in order, needs it too.
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
"""How many pairs must be proven to have a layout."""


def pairs_in_layout(matches: NodeMatches, pairs: Iterable[LearnedPair], used: Collection[int]) -> list[LearnedPair]:
    """The pairs of what is left outside all blocks, if it is the same number of layers, of shapes that all fit.

    Of layers that are matched, what is left of their ports and fits; ``used`` are entries, by ids, that have a pair.
    """
    views = [pair.reference.view for pair in pairs if pair.is_proven and len(pair.reference.parts) == 1]
    is_clear = len(views) >= _LEAST and len(set(views)) == 1 and views[0].startswith(_PERMUTE)
    if not is_clear or not matches.evidence.is_ordered:
        return []
    others = _of_others(matches)
    found = [(a, b) for a, b in _of_matched(matches, used) if _fits(a, b, views[0])]
    found += others if all(_fits(a, b, views[0]) for a, b in others) else []
    return [LearnedPair(Formula((a,), view=views[0]), Formula((b,)), is_proven=False) for a, b in found]


def _of_matched(matches: NodeMatches, used: Collection[int]) -> Iterator[tuple[Entry, Entry]]:
    """What is left of the ports of matched layers, in order, where it is as many."""
    for ours in matches.reference:
        theirs = matches.of_reference.get(id(ours))
        if theirs is None or ours.block is not None or theirs.block is not None:
            continue
        for both in ((ours.inputs, theirs.inputs), (ours.outputs, theirs.outputs)):
            left = [[entry for entry in some if id(entry) not in used] for some in both]
            if len(left[0]) == len(left[1]):
                yield from zip(*left, strict=True)


def _of_others(matches: NodeMatches) -> list[tuple[Entry, Entry]]:
    """The ports of layers that are not matched, in order, where these are as many, with as many ports."""
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
    """Whether one shape is another, with its axes in another order."""
    axes = [int(axis) for axis in view.removeprefix(_PERMUTE).split()]
    try:
        before, after = ours.spec.shape, theirs.spec.shape
    except (DumpError, AlignError):
        return False
    return len(axes) == len(before) and reconcile(tuple(before[axis] for axis in axes), after) is not None
