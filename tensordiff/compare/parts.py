"""Tensors in flat parts of bounded size, so that memory does not grow with theirs."""

from __future__ import annotations

from collections.abc import Iterator

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
