"""Tensors in flat parts of bounded size, so that memory does not grow with theirs.

A pair in rectangular parts of bounded size, with the error of every element in float64.

What looks closely at one pair (``detail``, ``heat``) goes through here, so that a tensor is never held whole
however large it is, and so that one pass may be stopped after any part.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.measure.numpy_pass import difference
from tensordiff.dump.dtypes import Array

PART = 1 << 20
"""Elements looked at a time where a tensor cannot be read in place."""


def flat_parts(ref: Array, cand: Array) -> Iterator[tuple[int, Array, Array]]:
    """Flat parts of a pair and where each begins, without copying what is contiguous already."""
    if ref.flags.c_contiguous and cand.flags.c_contiguous:
        r, c = ref.reshape(-1), cand.reshape(-1)
        for begin in range(0, ref.size, PART):
            yield begin, r[begin : begin + PART], c[begin : begin + PART]
    elif ref.size <= PART:
        yield 0, ref.reshape(-1), cand.reshape(-1)
    else:
        yield from _row_parts(ref, cand)


def _row_parts(ref: Array, cand: Array) -> Iterator[tuple[int, Array, Array]]:
    """Walk the first axis in slices no larger than a part."""
    row = ref.size // len(ref)
    step = max(1, PART // row)
    for begin in range(0, len(ref), step):
        take = begin if step == 1 else slice(begin, begin + step)
        for offset, r, c in flat_parts(ref[take], cand[take]):
            yield begin * row + offset, r, c


Floats = NDArray[np.float64]
Block = tuple[slice, ...]

MOST = 1 << 18
"""Elements of a block: a few milliseconds of work."""


def blocks(shape: tuple[int, ...], most: int = MOST) -> Iterator[Block]:
    """Rectangles that cover a shape, in order, none of more elements than ``most``."""
    if 0 in shape:
        return
    axis, row = len(shape), 1
    while axis and row * shape[axis - 1] <= most:
        axis -= 1
        row *= shape[axis]
    whole = tuple(slice(0, size) for size in shape[axis:])
    if not axis:
        yield whole
        return
    size, step = shape[axis - 1], most // row
    for outer in product(*map(range, shape[: axis - 1])):
        ones = tuple(slice(at, at + 1) for at in outer)
        for begin in range(0, size, step):
            yield (*ones, slice(begin, min(begin + step, size)), *whole)


def error_blocks(ref: Array, cand: Array) -> Iterator[tuple[Block, Floats, Floats]]:
    """Each block with the reference and the |error| in it."""
    for block in blocks(ref.shape):
        r, _, error = errors(ref[block], cand[block])
        yield block, r, error


def errors(ref: Array, cand: Array) -> tuple[Floats, Floats, Floats]:
    """Both sides, and |candidate - reference|; equal non-finite values have no error."""
    with np.errstate(all="ignore"):
        error = np.abs(difference(ref, cand))
        r, c = ref.astype(np.float64), cand.astype(np.float64)
        same = (r == c) | (np.isnan(r) & np.isnan(c))
        return r, c, np.where(same & ~np.isfinite(error), 0.0, error)
