"""Pairs with their axes as the reference has them, so that a hint's words for axes are true.

Where the candidate has tokens before the batch, a rule compares it with a reference whose axes are permuted. Its first
axis is then no batch, and tensors around it in the reference's dump are laid out otherwise. So the candidate's axes are
put in the reference's order instead.
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
"""Views that put axes in another order and do nothing else."""


class DumpedPairs:
    """All pairs of two runs; those that are looked at have the reference's axes in the order in which they were dumped.

    There may be very many, and a hint looks at few. So they are chosen by what moving axes leaves as it is: the layer,
    port, step and call of the reference's entry.
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs
        self._as_dumped: dict[int, Pair] = {}

    def where(self, test: Callable[[Entry], object]) -> Iterator[Pair]:
        """Pairs whose entry of the reference passes a test, in order."""
        return (self._dumped(k) for k, pair in enumerate(self._pairs) if test(pair.reference))

    def first(self, count: int) -> list[Pair]:
        """The first few."""
        return [self._dumped(k) for k in range(min(count, len(self._pairs)))]

    def _dumped(self, k: int) -> Pair:
        if k not in self._as_dumped:
            self._as_dumped[k] = as_dumped(self._pairs[k])
        return self._as_dumped[k]


def row_as_dumped(row: Row) -> Row:
    """A row whose pair has the reference's axes in the order in which they were dumped."""
    pair = as_dumped(row.pair)
    return row if pair is row.pair else row._replace(pair=pair, shape=pair.reference.spec.shape)


def as_dumped(pair: Pair) -> Pair:
    """A pair with the reference's axes in the order in which they were dumped; as it is where they are not moved."""
    if not isinstance(pair.reference.stored, ComputedTensor):
        return pair
    try:
        axes = _axes(pair.reference.stored)
        return pair if axes is None else _moved_back(pair, axes)
    except (DumpError, AlignError):
        return pair


def _axes(computed: ComputedTensor) -> list[int] | None:
    """Which axis of an entry each axis of its view is; None where the view does more than to move them."""
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
        return pair  # one is spread over the other's rows
    back = f"permute {' '.join(map(str, np.argsort(axes)))}"
    is_same = pair.candidate.spec.shape == shape
    view = back if is_same else f"reshape {' '.join(map(str, shape))} | {back}"
    return replace(pair, reference=reference, candidate=_viewed(pair.candidate, view))


def _viewed(entry: Entry, view: str) -> Entry:
    """An entry with a view applied, after any that it has."""
    stored = entry.stored
    before, entries = (
        (stored.expression, stored.entries)
        if isinstance(stored, ComputedTensor)
        else (Name(entry.name), {entry.name: entry})
    )
    return entry._replace(stored=ComputedTensor(view_of(parse_view(view), before), entries, view))
