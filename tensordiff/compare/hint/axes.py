"""Put the axes of pairs into the reference's order, so that a hint names axes correctly.

If the candidate has tokens before the batch, a rule compares it with a permuted view of the reference. The first axis
of that view is not the batch, and the tensors around it in the reference's dump are laid out differently. So the
candidate is permuted instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from tensordiff.align.expression import Call, Expression, Name, parse_view, plan, view_of
from tensordiff.align.index import ComputedTensor, parts_of
from tensordiff.align.match import Pair
from tensordiff.compare.row import Row
from tensordiff.dump.model import Entry, Spec
from tensordiff.errors import AlignError, DumpError

_MOVES = frozenset(("permute", "transpose", "swap_heads"))
"""Views that only reorder axes."""


class DumpedPairs:
    """All pairs of two runs; those that are looked at have the axis order of the reference's dump.

    There may be very many pairs and a hint looks at few, so pairs are selected by properties that reordering axes does
    not change: layer, port, step and call of the reference's entry.
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs
        self._as_dumped: dict[int, Pair] = {}

    def where(self, test: Callable[[Entry], object]) -> Iterator[Pair]:
        """Pairs whose reference entry passes a test, in order."""
        return (self._dumped(k) for k, pair in enumerate(self._pairs) if test(pair.reference))

    def first(self, count: int) -> list[Pair]:
        """The first few pairs."""
        return [self._dumped(k) for k in range(min(count, len(self._pairs)))]

    def _dumped(self, k: int) -> Pair:
        if k not in self._as_dumped:
            self._as_dumped[k] = as_dumped(self._pairs[k])
        return self._as_dumped[k]


def row_as_dumped(row: Row) -> Row:
    """A row whose pair has the axis order of the reference's dump."""
    pair = as_dumped(row.pair)
    return row if pair is row.pair else row._replace(pair=pair, shape=pair.reference.spec.shape)


def as_dumped(pair: Pair) -> Pair:
    """A pair in the axis order of the reference's dump; unchanged unless a view only reorders axes."""
    if not isinstance(pair.reference.stored, ComputedTensor):
        return pair
    try:
        axes = _axes(pair.reference.stored)
        return pair if axes is None else _moved_back(pair, axes)
    except (DumpError, AlignError):
        return pair


def _axes(computed: ComputedTensor) -> list[int] | None:
    """For each axis of a view, the axis of the entry that it is; None if the view does more than reorder axes."""
    if len(computed.entries) != 1 or not _only_moves(computed.expression):
        return None
    [(name, entry)] = computed.entries.items()
    numbered = Spec(tuple(range(2, 2 + len(entry.spec.shape))), entry.spec.dtype)
    return [size - 2 for size in plan(computed.expression, {name: numbered}).shape]


def _only_moves(expression: Expression) -> bool:
    while isinstance(expression, Call) and expression.function in _MOVES and len(expression.tensors) == 1:
        expression = expression.tensors[0]
    return isinstance(expression, Name)


def _moved_back(pair: Pair, axes: list[int]) -> Pair:
    [reference], shape = parts_of(pair.reference), pair.reference.spec.shape
    if math.prod(pair.candidate.spec.shape) != math.prod(shape):
        return pair  # one side is broadcast over the other's rows
    back = f"permute {' '.join(map(str, np.argsort(axes)))}"
    is_same = pair.candidate.spec.shape == shape
    view = back if is_same else f"reshape {' '.join(map(str, shape))} | {back}"
    return replace(pair, reference=reference, candidate=_viewed(pair.candidate, view))


def _viewed(entry: Entry, view: str) -> Entry:
    """An entry with a view applied after those that it already has."""
    stored = entry.stored
    before, entries = (
        (stored.expression, stored.entries)
        if isinstance(stored, ComputedTensor)
        else (Name(entry.name), {entry.name: entry})
    )
    return entry._replace(stored=ComputedTensor(view_of(parse_view(view), before), entries, view))
