"""Cut pairs into chunks of bounded size, so that memory does not grow with the tensors.

``flat_chunks`` cuts the flattened pair, for measuring. ``blocks`` and ``error_blocks`` cut it into rectangles, for
looking closely at one pair (``look.elements``, ``look.heat``), which may stop after any of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.measure.numpy_pass import difference
from tensordiff.dump.dtypes import Array

CHUNK = 1 << 20
"""Maximum number of elements in a flat chunk."""


def flat_chunks(ref: Array, cand: Array, most: int = CHUNK) -> Iterator[tuple[int, Array, Array]]:
    """Flat chunks of a pair, each with its offset. Contiguous data is not copied, and only such chunks may be ``most``
    long."""
    if ref.flags.c_contiguous and cand.flags.c_contiguous:
        r, c = ref.reshape(-1), cand.reshape(-1)
        for begin in range(0, ref.size, most):
            yield begin, r[begin : begin + most], c[begin : begin + most]
    elif ref.size <= CHUNK:
        yield 0, ref.reshape(-1), cand.reshape(-1)
    else:
        yield from _row_chunks(ref, cand)


def _row_chunks(ref: Array, cand: Array) -> Iterator[tuple[int, Array, Array]]:
    """Walk along the first axis in slices no larger than a chunk."""
    row = ref.size // len(ref)
    step = max(1, CHUNK // row)
    for begin in range(0, len(ref), step):
        take = begin if step == 1 else slice(begin, begin + step)
        for offset, r, c in flat_chunks(ref[take], cand[take]):
            yield begin * row + offset, r, c


Floats = NDArray[np.float64]
Block = tuple[slice, ...]

BLOCK = 1 << 18
"""Maximum number of elements in a block: a few milliseconds of work."""


def blocks(shape: tuple[int, ...], most: int = BLOCK) -> Iterator[Block]:
    """Rectangles that cover a shape, in order, of at most ``most`` elements each."""
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
    """Each block with the reference and |error| inside it, in float64."""
    for block in blocks(ref.shape):
        r, _, error = errors(ref[block], cand[block])
        yield block, r, error


def errors(ref: Array, cand: Array) -> tuple[Floats, Floats, Floats]:
    """Both sides and |candidate - reference| in float64; equal non-finite values have no error."""
    with np.errstate(all="ignore"):
        error = np.abs(difference(ref, cand))
        r, c = ref.astype(np.float64), cand.astype(np.float64)
        same = (r == c) | (np.isnan(r) & np.isnan(c))
        return r, c, np.where(same & ~np.isfinite(error), 0.0, error)
