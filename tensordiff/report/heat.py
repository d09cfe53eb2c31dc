"""The error of one pair as a small picture: the largest |error| in each cell of a grid laid over the tensor.

The tensor is seen as rows (all axes but the last, flattened: tokens, mostly) by columns (the last axis: channels).
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tensordiff.compare.heat import Plane
from tensordiff.compare.heat import heat as heat_of
from tensordiff.compare.measure import as_reals
from tensordiff.dump.dtypes import Array

ROWS, COLUMNS = 48, 96


class Heat(NamedTuple):
    """A grid over a tensor."""

    rows: int
    """How many rows of the tensor there are."""
    columns: int
    cells: tuple[tuple[float, ...], ...]
    """The largest |error| of each cell; NaN where one side is NaN and the other is not the same."""


def heat(ref: Array, cand: Array, most: tuple[int, int] = (ROWS, COLUMNS)) -> Heat | None:
    """The picture of a pair of one shape; None of an empty one."""
    if not ref.size:
        return None
    ref, cand = (_flat(side) for side in as_reals(ref, cand))
    rows, columns = ref.shape
    plane = Plane(0, 1, _cuts(rows, most[0]), _cuts(columns, most[1]))
    (cells,) = deque(heat_of(ref, cand, plane), maxlen=1)
    return Heat(rows, columns, tuple(map(tuple, cells.tolist())))


def _flat(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1] if array.ndim else 1)


def _cuts(length: int, most: int) -> tuple[int, ...]:
    count = min(length, most)
    return tuple(length * k // count for k in range(count + 1))
