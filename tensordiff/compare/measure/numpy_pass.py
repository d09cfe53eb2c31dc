"""The numpy pass: the simplest definition of each number, and the fallback for installs without the compiled pass.

Everything is computed in float64, in stretches that fit into the cache. Both passes fill the same ``Sums``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.measure import diff as at
from tensordiff.compare.measure.diff import REL_GUARD, Products, Sums, cuts_within, edges
from tensordiff.compare.measure.dtype_plan import is_long
from tensordiff.dump.dtypes import Array

Floats = NDArray[np.float64]
STRETCH = 1 << 13
"""Elements per stretch: temporaries stay in the cache, and below the size that the allocator returns to the system."""


def collect(ref: Array, cand: Array, offset: int, sums: Sums, atol: float, rtol: float) -> None:
    """Add a flat chunk of a pair, which begins at ``offset``, to the sums."""
    starts = edges(sums.elements)
    for begin in range(0, len(ref), STRETCH):
        r, c = ref[begin : begin + STRETCH], cand[begin : begin + STRETCH]
        with np.errstate(all="ignore"):
            wide = r.astype(np.float64), c.astype(np.float64)
            d = difference(r, c) if is_long(r.dtype) or is_long(c.dtype) else wide[1] - wide[0]
            _add_stretch(*wide, d, offset + begin, starts, sums, (atol, rtol))


def difference(ref: Array, cand: Array) -> Floats:
    """cand - ref, rounded once, even for 64-bit integers that float64 cannot hold."""
    are_long = is_long(ref.dtype), is_long(cand.dtype)
    if any(are_long) and ref.dtype.kind in "iub" and cand.dtype.kind in "iub":
        (high_c, low_c), (high_r, low_r) = _halves(cand), _halves(ref)
        return (high_c - high_r) * 2.0**32 + (low_c - low_r)
    # If the values are close, the first step is exact; if not, the rest is below its rounding error.
    d: Floats = cand.astype(np.float64) - ref.astype(np.float64)
    return d + _rest(cand) if are_long[1] else d - _rest(ref) if are_long[0] else d


def _halves(array: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The upper and lower 32 bits of integers, each small enough to subtract."""
    wide = array if array.dtype.itemsize == 8 else array.astype(np.int64)
    return (wide >> 32).astype(np.int64), (wide & 0xFFFFFFFF).astype(np.int64)


def _rest(array: Array) -> Floats:
    """What float64 loses of 64-bit integers: at most a few hundred, exactly."""
    high, low = _halves(array)
    return np.asarray((high * 2.0**32 - array.astype(np.float64)) + low, np.float64)


def _add_stretch(
    r: Floats,
    c: Floats,
    d: Floats,
    offset: int,
    starts: NDArray[np.int64],
    sums: Sums,
    tolerance: tuple[float, float],
) -> None:
    if not np.isfinite(d).all():
        r, d, apart = _set_nonfinite_aside(r, c, d, offset, sums)
    else:
        apart = None
    error, size = np.abs(d), np.abs(r)
    outside = error > tolerance[0] + tolerance[1] * size
    if apart is not None:
        outside |= apart
    _take_peak(0, error, offset, sums)
    _take_peak(1, error / np.maximum(size, REL_GUARD), offset, sums)
    squares = d * d
    for column, values in enumerate((error, squares, r * r, r * d, outside)):
        sums.cells[at.TOTALS + column] += values.sum(dtype=np.float64)
    buckets, first = cuts_within(starts, offset, len(r))
    sums.squares[first : first + len(buckets)] += np.add.reduceat(squares, buckets)


def _take_peak(which: int, values: Floats, offset: int, sums: Sums) -> None:
    place = int(values.argmax())
    if values[place] > sums.cells[at.PEAKS + which]:
        sums.cells[at.PEAKS + which], sums.cells[at.WHERE + which] = values[place], offset + place


def _set_nonfinite_aside(
    r: Floats, c: Floats, d: Floats, offset: int, sums: Sums
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Count non-finite places; return ref and difference with zeros there, and where the sides stand apart."""
    nan_r, nan_c, inf_r, inf_c = np.isnan(r), np.isnan(c), np.isinf(r), np.isinf(c)
    nonfinite_r, nonfinite = nan_r | inf_r, nan_r | inf_r | nan_c | inf_c
    apart = nonfinite & ~((nan_r & nan_c) | (r == c))
    nan_apart = apart & (nan_r | nan_c)
    for place, mask in ((at.NAN_REF, nan_r), (at.NAN_CAND, nan_c), (at.INF_REF, inf_r), (at.INF_CAND, inf_c)):
        sums.cells[place] += np.count_nonzero(mask)
    for kind, mask in enumerate((nan_apart, apart & ~nan_apart)):
        sums.cells[at.NAN_APART + kind] += np.count_nonzero(mask)
        if mask.any():
            sums.cells[at.FIRST_NAN + kind] = min(int(sums.cells[at.FIRST_NAN + kind]), offset + int(mask.argmax()))
    return np.where(nonfinite_r, 0.0, r), np.where(nonfinite, 0.0, d), apart


def products(ref: Array, cand: Array) -> Products:
    """Inner products over the finite places, in float64."""
    total = np.zeros(5)
    for begin in range(0, len(ref), STRETCH):
        r, c = ref[begin : begin + STRETCH], cand[begin : begin + STRETCH]
        with np.errstate(all="ignore"):
            d, r, c = difference(r, c), r.astype(np.float64), c.astype(np.float64)
            keep = np.isfinite(d)
            d, r, c = d[keep], r[keep], c[keep]
            total += (np.dot(d, d), np.dot(r, r), np.dot(r, d), np.dot(c, c), np.dot(r, c))
    return Products(*total.tolist())
