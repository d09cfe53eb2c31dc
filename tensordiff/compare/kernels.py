"""The compiled pass over a pair: every number of a diff in one read of each tensor.

Blocks of 512 elements are summed in the tensors' own precision and folded into float64, so that
no sum is off by more than 1e-6 however long the tensor: 512 elements are at most 32 additions a
SIMD lane. What float32 cannot carry (non-finite values, squares that overflow or vanish) sends
that one block to ``_exact_block``. Where a maximum stands is looked for only in blocks that can
hold it.

Nothing here knows of dumps, shapes or verdicts. bfloat16 comes in as uint16, float16 as int16,
told apart by that. Only ``measure`` imports this module: it costs a fifth of a second to load.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

from tensordiff.compare.sums import (
    FIRST_NAN,
    INF_CAND,
    INF_REF,
    NAN_APART,
    NAN_CAND,
    NAN_REF,
    OUTSIDE,
    REL_GUARD,
    SUM_ABS,
    SUM_DD,
    SUM_RD,
    SUM_RR,
)  # fmt: skip

BLOCK = 512
_BAND = 4e-6  # wider than any float32 rounding between a block's estimate and the exact value

# No nnan or ninf: a NaN must survive to be seen. reassoc is what lets sums be vectorized.
_fast = njit(nogil=True, cache=True, error_model="numpy", fastmath={"nsz", "contract", "reassoc"})
_strict = njit(nogil=True, cache=True, error_model="numpy")


@intrinsic  # type: ignore[untyped-decorator]
def _bits(_context: Any, value: Any) -> Any:
    """A float's bits as an integer of its width: maxima of integers are vectorized, of floats not."""
    integer, width = (types.int32, 32) if value == types.float32 else (types.int64, 64)
    return integer(value), lambda _c, builder, _s, args: builder.bitcast(args[0], ir.IntType(width))


@intrinsic  # type: ignore[untyped-decorator]
def _unbits(_context: Any, value: Any) -> Any:
    """The float that has these bits."""
    real, llvm = (types.float32, ir.FloatType()) if value == types.int32 else (types.float64, ir.DoubleType())
    return real(value), lambda _c, builder, _s, args: builder.bitcast(args[0], llvm)


@intrinsic  # type: ignore[untyped-decorator]
def _from_bfloat16(_context: Any, value: Any) -> Any:
    def generate(_c: Any, builder: Any, _s: Any, args: Any) -> Any:
        wide = builder.zext(args[0], ir.IntType(32))
        return builder.bitcast(builder.shl(wide, ir.Constant(ir.IntType(32), 16)), ir.FloatType())

    return types.float32(value), generate


@intrinsic  # type: ignore[untyped-decorator]
def _from_float16(_context: Any, value: Any) -> Any:
    def generate(_c: Any, builder: Any, _s: Any, args: Any) -> Any:
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(value), generate


def _load(array: Any, i: Any) -> Any:
    """An element as a float."""


@overload(_load, inline="always", strict=False)  # type: ignore[untyped-decorator]
def _load_typed(array: Any, i: Any) -> Any:
    if array.dtype == types.uint16:
        return lambda array, i: _from_bfloat16(array[i])
    if array.dtype == types.int16:
        return lambda array, i: _from_float16(array[i])
    return lambda array, i: array[i]


def _like(sample: Any, value: Any) -> Any:
    """A constant in the sample's type: a float64 constant would widen the whole loop."""


@overload(_like, inline="always", strict=False)  # type: ignore[untyped-decorator]
def _like_typed(sample: Any, value: Any) -> Any:
    if sample == types.float32:
        return lambda sample, value: np.float32(value)
    return lambda sample, value: np.float64(value)


@_fast  # type: ignore[untyped-decorator]
def _fast_block(ref: Any, cand: Any, bounds: Any, guard: Any, bar: Any) -> Any:
    """All sums of a block, its largest error, and whether a relative error is above ``bar``.

    ``bounds`` are atol and rtol, a hair under the user's and a hair over.
    """
    under_a, under_r, over_a, over_r = bounds
    zero, one = _like(guard, 0.0), _like(guard, 1.0)
    sum_abs, sum_dd, sum_rr, sum_rd = zero, zero, zero, zero
    above, well_above = zero, zero
    largest, is_above_bar = _bits(zero), False
    for i in range(ref.shape[0]):
        r = _load(ref, i)
        d = _load(cand, i) - r
        abs_d, abs_r = abs(d), abs(r)
        sum_abs += abs_d
        sum_dd += d * d
        sum_rr += r * r
        sum_rd += r * d
        bits = _bits(abs_d)
        largest = bits if bits > largest else largest
        is_above_bar |= abs_d > bar * (abs_r if abs_r > guard else guard)
        above += one if abs_d > under_a + under_r * abs_r else zero
        well_above += one if abs_d > over_a + over_r * abs_r else zero
    return sum_abs, sum_dd, sum_rr, sum_rd, above, well_above, _unbits(largest), is_above_bar


@_fast  # type: ignore[untyped-decorator]
def _all_zero(array: Any) -> Any:
    """Whether a block holds nothing but zeros."""
    seen = False
    for i in range(array.shape[0]):
        seen |= abs(_load(array, i)) > 0
    return not seen


@_strict  # type: ignore[untyped-decorator]
def _search_block(ref: Any, cand: Any, start: Any, peaks: Any, where: Any) -> None:
    """Take a block's exact largest finite errors into ``peaks`` (abs, rel); the first of equals stays."""
    for i in range(ref.shape[0]):
        r = np.float64(_load(ref, i))
        error = abs(np.float64(_load(cand, i)) - r)
        if error > peaks[0] and error < np.inf:
            peaks[0], where[0] = error, start + i
        relative = error / max(abs(r), REL_GUARD)
        if relative > peaks[1] and relative < np.inf:
            peaks[1], where[1] = relative, start + i


@_strict  # type: ignore[untyped-decorator]
def _tell_odd(r: Any, c: Any, place: Any, odd: Any) -> Any:
    """Count a place where one side is not finite; 1.0 if the other is not the same."""
    odd[NAN_REF] += np.isnan(r)
    odd[NAN_CAND] += np.isnan(c)
    odd[INF_REF] += np.isinf(r)
    odd[INF_CAND] += np.isinf(c)
    if r == c or (np.isnan(r) and np.isnan(c)):
        return 0.0
    kind = 0 if np.isnan(r) or np.isnan(c) else 1
    odd[NAN_APART + kind] += 1
    odd[FIRST_NAN + kind] = min(odd[FIRST_NAN + kind], place)
    return 1.0


@_strict  # type: ignore[untyped-decorator]
def _exact_block(ref: Any, cand: Any, start: Any, tolerance: Any, row: Any, odd: Any) -> None:
    """A block that its own precision cannot carry: all in float64, non-finite values told apart."""
    atol, rtol = tolerance
    for i in range(ref.shape[0]):
        r, c = np.float64(_load(ref, i)), np.float64(_load(cand, i))
        if np.isfinite(r):
            row[SUM_RR] += r * r
        if np.isfinite(r) and np.isfinite(c):
            d = c - r
            row[SUM_ABS] += abs(d)
            row[SUM_DD] += d * d
            row[SUM_RD] += r * d
            row[OUTSIDE] += 1.0 if abs(d) > atol + rtol * abs(r) else 0.0
        else:
            row[OUTSIDE] += _tell_odd(r, c, start + i, odd)


@_strict  # type: ignore[untyped-decorator]
def scan(
    ref: Any, cand: Any, offset: Any, edges: Any, tolerance: Any, bounds: Any, vanishing: Any, splits_ties: Any,
    rows: Any, peaks: Any, where: Any, odd: Any,
) -> None:  # fmt: skip
    """Take elements ``offset`` and on of a pair into the sums. ``edges`` are those of the whole pair.

    ``vanishing`` is the sum of squares under which the type's precision no longer carries them.
    ``splits_ties`` asks for the largest even among errors that are equal to float32 rounding.
    """
    band = -_BAND if splits_ties else _BAND
    position, end, bucket = 0, ref.shape[0], 0
    guard = _like(bounds[0], REL_GUARD)
    while position < end:
        while edges[bucket + 1] <= offset + position:
            bucket += 1
        stop = min(position + BLOCK, end, edges[bucket + 1] - offset)
        r, c, start, row = ref[position:stop], cand[position:stop], offset + position, rows[bucket]
        bar = _like(guard, peaks[1] * (1 + band))
        sum_abs, dd, rr, rd, above, well_above, largest, is_above_bar = _fast_block(r, c, bounds, guard, bar)
        carried = largest < np.inf and dd < np.inf and rr < np.inf and above == well_above
        carried = carried and (dd >= vanishing or largest == 0) and (rr >= vanishing or _all_zero(r))
        if carried:
            row[SUM_ABS] += sum_abs
            row[SUM_DD] += dd
            row[SUM_RR] += rr
            row[SUM_RD] += rd
            row[OUTSIDE] += above
        else:
            _exact_block(r, c, start, tolerance, row, odd)
        if _may_hold_peak(r, c, largest, is_above_bar, splits_ties, peaks):
            _search_block(r, c, start, peaks, where)
        position = stop


@_strict  # type: ignore[untyped-decorator]
def _may_hold_peak(ref: Any, cand: Any, largest: Any, is_above_bar: Any, splits_ties: Any, peaks: Any) -> Any:
    """Whether a block holds an error larger than the largest so far, absolute or relative."""
    if largest == 0:
        return False
    peak = _like(largest, peaks[0])  # rounding keeps order: a larger error never rounds to a smaller one
    if not (largest <= peak):
        return True
    may_beat = is_above_bar or (splits_ties and largest == peak)
    return may_beat and _beats(ref, cand, peaks[0], peaks[1] * (1 - 1e-15))


@_fast  # type: ignore[untyped-decorator]
def _beats(ref: Any, cand: Any, peak_abs: Any, peak_rel: Any) -> Any:
    """Whether any error of a block is larger, in float64."""
    beaten = False
    for i in range(ref.shape[0]):
        r = np.float64(_load(ref, i))
        error, size = abs(np.float64(_load(cand, i)) - r), abs(r)
        beaten |= error > peak_abs
        beaten |= error > peak_rel * (size if size > REL_GUARD else REL_GUARD)
    return beaten


@_fast  # type: ignore[untyped-decorator]
def exact_products(ref: Any, cand: Any, out: Any) -> None:
    """Inner products (dd, rr, rd, cc, rc) of the finite places, in float64 throughout."""
    zero = np.float64(0.0)
    dd, rr, rd, cc, rc = 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(ref.shape[0]):
        r, c = np.float64(_load(ref, i)), np.float64(_load(cand, i))
        d = c - r
        finite = abs(d) < np.inf
        r, c, d = (r if finite else zero), (c if finite else zero), (d if finite else zero)
        dd += d * d
        rr += r * r
        rd += r * d
        cc += c * c
        rc += r * c
    out[0] += dd
    out[1] += rr
    out[2] += rd
    out[3] += cc
    out[4] += rc
