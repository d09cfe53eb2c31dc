"""When the layers of a ``verify_layers`` run began and ended, as far as its lists tell.

Torch noted leaf layers as they ended; a leaf's inputs come right before its outputs. MAX noted all
layers as they began, and its metadata has them as they ended: with both, a layer's inputs stand
where it began and its outputs where it ended, after all that ran within it. A layer that ran more
than once overwrote its tensors, so only its last run counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Moment(NamedTuple):
    """A layer being given its inputs, or giving its outputs."""

    layer: str
    is_input: bool


def moments_of_leaves(layers: Iterable[str]) -> list[Moment]:
    """Each layer in turn, begun and ended."""
    return [Moment(layer, is_input) for layer in layers for is_input in (True, False)]


def moments_of_nested(began: list[str], ended: Iterable[str]) -> list[Moment]:
    """What was noted as it began and what as it ended, put together as calls within calls."""
    counts = Counter(began)
    # A layer in only one of the lists, or run twice, cannot be followed: it is taken for a leaf.
    ends = [layer for layer in ended if counts[layer] == 1]
    return list(_nest(last_runs(began), ends))


def last_runs(layers: list[str]) -> list[str]:
    """Each layer once, where it stands last."""
    return list(dict.fromkeys(reversed(layers)))[::-1]


def _nest(began: list[str], ends: list[str]) -> Iterator[Moment]:
    nested = set(ends)
    still_open: list[str] = []
    next_end = 0
    for layer in began:
        yield Moment(layer, True)
        if layer not in nested:
            yield Moment(layer, False)
            continue
        still_open.append(layer)
        while still_open and still_open[-1] == ends[next_end]:
            yield Moment(still_open.pop(), False)
            next_end += 1
    # Lists that contradict each other leave layers open; those within still end before those around.
    yield from (Moment(layer, False) for layer in reversed(still_open))
