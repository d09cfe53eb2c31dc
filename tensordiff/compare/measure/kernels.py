"""The compiled pass over a pair: every number of a diff in one read of each tensor.

Blocks of 512 elements are summed in the tensors' own precision and folded into float64. 512 elements are at most 32
additions a SIMD lane, so no sum is off by more than 1e-6 however long the tensor. A block that float32 cannot carry
(non-finite values, squares that overflow or vanish) is summed again by ``_exact_block``. The position of a maximum is
searched only in blocks that can hold it.

Nothing here knows about dumps, shapes or verdicts. bfloat16 comes in as uint16 and float16 as int16, which is how they
are told apart. Only ``scheduler.load_kernels`` imports this module: it takes a fifth of a second to load. What is
called from outside is kept on disk by ``kernel_cache``, with all that it calls.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding
from numba import carray, config, njit
from numba.extending import register_jitable

from tensordiff.compare.measure import metrics
from tensordiff.compare.measure.diff import (
    BUCKETS,
    FIRST_NAN,
    INF_CAND,
    INF_REF,
    NAN_APART,
    NAN_CAND,
    NAN_REF,
    OUTSIDE,
    PEAKS,
    REL_GUARD,
    SQUARES,
    SUM_ABS,
    SUM_DD,
    SUM_RD,
    SUM_RR,
    TOTALS,
    WHERE,
    WIDTH,
)
from tensordiff.compare.measure.intrinsics import (
    at_most_largest,
    bits_of,
    count_if,
    float_of,
    like,
    load,
    memory_at,
    steps_from,
    take,
)
from tensordiff.compare.measure.kernel_cache import cached


def _prefer_wide_vectors() -> None:
    """Let the compiler use 512-bit vectors where they are not slower.

    LLVM avoids them because they lowered clocks; processors new enough for bfloat16 instructions do not slow down.
    What the user has set in the environment is kept.
    """
    features = binding.get_host_cpu_features()
    if features.get("avx512bf16") and not config.CPU_FEATURES and not config.CPU_NAME:
        config.CPU_NAME = binding.get_host_cpu_name()
        config.CPU_FEATURES = f"{features.flatten()},-prefer-256-bit"


_prefer_wide_vectors()

BLOCK = 512
_NEAR = 256  # steps of a type by which an element is clearly outside
_BAND = 4e-6  # wider than any float32 rounding between a block's estimate and the exact value

# No nnan or ninf: a NaN must survive to be seen. reassoc is what lets sums be vectorized.
_fast = njit(nogil=True, error_model="numpy", fastmath={"nsz", "contract", "reassoc"})
_strict = njit(nogil=True, error_model="numpy")


@_strict  # type: ignore[untyped-decorator]
def _place(index: Any) -> Any:
    """An index that cannot be negative: negative indices would cost a branch per element."""
    return np.uint64(index)


@_fast  # type: ignore[untyped-decorator]
def _fast_block(ref: Any, cand: Any, start: Any, stop: Any, under: Any, guard: Any, bar: Any) -> Any:
    """All sums of a block, its largest error, how many are outside, the nearest of these, and the excess over ``bar``.

    ``under`` is atol and rtol slightly below the user's. ``nearest`` is how close, in steps of the type, an element
    comes above that bound: where it is close, rounding may decide, and the block is summed again exactly. ``bar`` is
    the largest relative error so far.
    """
    zero = like(bar, 0.0)
    sum_abs, sum_dd, sum_rr, sum_rd = zero, zero, zero, zero
    outside, largest, excess, nearest = np.int32(0), bits_of(zero), bits_of(zero), steps_from(zero, like(bar, 1.0))
    for i in range(_place(start), _place(stop)):
        r = load(ref, i)
        d = load(cand, i) - r
        abs_d, abs_r = abs(d), abs(r)
        sum_abs += abs_d
        sum_dd += d * d
        sum_rr += r * r
        sum_rd += r * d
        bits, beyond = bits_of(abs_d), bits_of(abs_d - bar * (abs_r if abs_r > guard else guard))
        largest = bits if bits > largest else largest
        excess = beyond if beyond > excess else excess
        allowed = under[0] + under[1] * abs_r
        steps = steps_from(allowed, abs_d)
        nearest = steps if steps < nearest else nearest
        outside = count_if(outside, abs_d >= allowed)
    return sum_abs, sum_dd, sum_rr, sum_rd, outside, nearest, float_of(largest), excess > 0


@_fast  # type: ignore[untyped-decorator]
def _all_zero(array: Any, start: Any, stop: Any) -> Any:
    """Whether a block holds nothing but zeros."""
    seen = False
    for i in range(_place(start), _place(stop)):
        seen |= abs(load(array, i)) > 0
    return not seen


@_fast  # type: ignore[untyped-decorator]
def _exact_peaks(ref: Any, cand: Any, start: Any, stop: Any) -> Any:
    """A block's largest finite errors, absolute and relative, in float64."""
    zero = np.float64(0.0)
    largest, largest_rel = bits_of(zero), bits_of(zero)
    for i in range(_place(start), _place(stop)):
        r = np.float64(load(ref, i))
        error, size = abs(np.float64(load(cand, i)) - r), abs(r)
        error = error if error < np.inf else zero
        bits, bits_rel = bits_of(error), bits_of(error / (size if size > REL_GUARD else REL_GUARD))
        largest = bits if bits > largest else largest
        largest_rel = bits_rel if bits_rel > largest_rel else largest_rel
    return float_of(largest), float_of(largest_rel)


@_strict  # type: ignore[untyped-decorator]
def _find(ref: Any, cand: Any, start: Any, stop: Any, peak: Any, is_relative: Any) -> Any:
    """The first place of a block that has this very error."""
    near = peak * (1 - 1e-15)
    for i in range(_place(start), _place(stop)):
        r = np.float64(load(ref, i))
        error, size = abs(np.float64(load(cand, i)) - r), max(abs(r), REL_GUARD) if is_relative else 1.0
        # Dividing takes longer than all the rest: only what a product does not rule out is divided.
        if error >= near * size and error / size == peak:
            return i
    return _place(start)


@_strict  # type: ignore[untyped-decorator]
def _search_block(ref: Any, cand: Any, start: Any, stop: Any, offset: Any, cells: Any) -> None:
    """Take a block's exact largest finite errors into the peaks; the first of equals stays."""
    peaks = _exact_peaks(ref, cand, start, stop)
    for which in range(2):
        if peaks[which] > cells[PEAKS + which]:
            cells[PEAKS + which] = peaks[which]
            cells[WHERE + which] = offset + _find(ref, cand, start, stop, peaks[which], which == 1)


@_strict  # type: ignore[untyped-decorator]
def _tell_odd(r: Any, c: Any, place: Any, cells: Any) -> Any:
    """Count a place where one side is not finite; 1.0 if the other is not the same."""
    cells[NAN_REF] += np.isnan(r)
    cells[NAN_CAND] += np.isnan(c)
    cells[INF_REF] += np.isinf(r)
    cells[INF_CAND] += np.isinf(c)
    if r == c or (np.isnan(r) and np.isnan(c)):
        return 0.0
    kind = 0 if np.isnan(r) or np.isnan(c) else 1
    cells[NAN_APART + kind] += 1
    cells[FIRST_NAN + kind] = min(cells[FIRST_NAN + kind], place)
    return 1.0


@_strict  # type: ignore[untyped-decorator]
def _exact_block(ref: Any, cand: Any, start: Any, stop: Any, offset: Any, tolerance: Any, row: Any, cells: Any) -> None:
    """A block that its own precision cannot carry: all in float64, non-finite values told apart."""
    atol, rtol = tolerance
    for i in range(_place(start), _place(stop)):
        r, c = np.float64(load(ref, i)), np.float64(load(cand, i))
        if np.isfinite(r):
            row[SUM_RR] += r * r
        if np.isfinite(r) and np.isfinite(c):
            d = c - r
            row[SUM_ABS] += abs(d)
            row[SUM_DD] += d * d
            row[SUM_RD] += r * d
            row[OUTSIDE] += 1.0 if abs(d) > atol + rtol * abs(r) else 0.0
        else:
            row[OUTSIDE] += _tell_odd(r, c, offset + i, cells)


@_fast  # type: ignore[untyped-decorator]
def _beats(ref: Any, cand: Any, start: Any, stop: Any, peak_abs: Any, peak_rel: Any) -> Any:
    """Whether any error of a block is larger, in float64."""
    beaten = False
    for i in range(_place(start), _place(stop)):
        r = np.float64(load(ref, i))
        error, size = abs(np.float64(load(cand, i)) - r), abs(r)
        beaten |= error > peak_abs
        beaten |= error > peak_rel * (size if size > REL_GUARD else REL_GUARD)
    return beaten


@_strict  # type: ignore[untyped-decorator]
def _scan_bucket(
    ref: Any, cand: Any, first: Any, last: Any, offset: Any, tolerance: Any, under: Any, vanishing: Any,
    splits_ties: Any, row: Any, cells: Any,
) -> None:  # fmt: skip
    """Take elements ``first`` to ``last`` into one row of sums."""
    guard = like(vanishing, REL_GUARD)
    band = 1 - _BAND if splits_ties else 1 + _BAND
    # Infinite in the tensors' type, no later error would be above them.
    peak, bar = at_most_largest(guard, cells[PEAKS]), at_most_largest(guard, cells[PEAKS + 1] * band)
    total_abs, total_dd, total_rr, total_rd, outside = 0.0, 0.0, 0.0, 0.0, 0.0
    for start in range(first, last, BLOCK):
        stop = min(start + BLOCK, last)
        sum_abs, dd, rr, rd, out, nearest, largest, is_above_bar = _fast_block(
            ref, cand, start, stop, under, guard, bar
        )
        is_carried = dd < np.inf and rr < np.inf and nearest >= _NEAR
        is_carried = is_carried and (dd >= vanishing or largest == 0)
        if is_carried and (rr >= vanishing or _all_zero(ref, start, stop)):
            total_abs += sum_abs
            total_dd += dd
            total_rr += rr
            total_rd += rd
            outside += out
        else:
            _exact_block(ref, cand, start, stop, offset, tolerance, row, cells)
        # Rounding keeps order: an error larger than the peak never rounds to less than the peak does.
        holds_peak = not (largest <= peak)
        if not holds_peak and largest > 0 and (is_above_bar or (splits_ties and largest == peak)):
            holds_peak = _beats(ref, cand, start, stop, cells[PEAKS], cells[PEAKS + 1] * (1 - 1e-15))
        if holds_peak:
            _search_block(ref, cand, start, stop, offset, cells)
            peak, bar = at_most_largest(guard, cells[PEAKS]), at_most_largest(guard, cells[PEAKS + 1] * band)
    row[SUM_ABS] += total_abs
    row[SUM_DD] += total_dd
    row[SUM_RR] += total_rr
    row[SUM_RD] += total_rd
    row[OUTSIDE] += outside


@_strict  # type: ignore[untyped-decorator]
def scan(ref: Any, cand: Any, offset: Any, whole: Any, tolerance: Any, near: Any, splits_ties: Any, cells: Any) -> None:
    """Take a part of a pair, which begins at ``offset``, into the sums. The whole pair has so many elements.

    ``near`` is atol and rtol slightly below the tolerance, and the sum of squares below which the tensors' precision
    no longer carries it. ``splits_ties`` asks for the largest even among errors that are equal to float32 rounding.
    """
    under, vanishing = (near[0], near[1]), near[2]
    row = np.empty(WIDTH)
    end, buckets = offset + ref.shape[0], min(BUCKETS, whole)
    for bucket in range(buckets):
        first, last = max(bucket * whole // buckets, offset), min((bucket + 1) * whole // buckets, end)
        if first < last:
            row[:] = 0.0
            begin, stop = first - offset, last - offset
            _scan_bucket(ref, cand, begin, stop, offset, tolerance, under, vanishing, splits_ties, row, cells)
            cells[SQUARES + bucket] += row[SUM_DD]
            for k in range(WIDTH):
                cells[TOTALS + k] += row[k]


@cached
@_strict  # type: ignore[untyped-decorator]
def scan_taken(
    taken: Any, table: Any, ref_like: Any, cand_like: Any, tolerance: Any, near: Any, splits_ties: Any, cells: Any
) -> None:
    """``scan`` the parts of a table that no other thread has taken, until none is left.

    They are given by address, so that arrays which may be written and those which may not are compiled for once.
    """
    while True:
        k = take(taken)
        if k >= table.shape[0]:
            break
        elements, offset, whole, row = table[k, 2], table[k, 3], table[k, 4], table[k, 5]
        ref = carray(memory_at(table[k, 0], ref_like), elements)
        cand = carray(memory_at(table[k, 1], cand_like), elements)
        scan(ref, cand, offset, whole, tolerance, near, splits_ties, cells[row])


@cached
@_strict  # type: ignore[untyped-decorator]
def join_pieces(pieces: Any, firsts: Any, cells: Any) -> None:
    """Put the cells of each pair's pieces together: ``Sums.add``, for many."""
    for k in range(cells.shape[0]):
        mine = cells[k]
        for piece in range(firsts[k], firsts[k + 1]):
            theirs = pieces[piece]
            for which in range(2):
                if theirs[PEAKS + which] > mine[PEAKS + which]:  # pieces come in order: the first of equals stays
                    mine[PEAKS + which], mine[WHERE + which] = theirs[PEAKS + which], theirs[WHERE + which]
            for cell in range(FIRST_NAN, TOTALS):
                mine[cell] = min(mine[cell], theirs[cell])
            for cell in range(NAN_REF, FIRST_NAN):
                mine[cell] += theirs[cell]
            for cell in range(TOTALS, mine.shape[0]):
                mine[cell] += theirs[cell]


for _part in (metrics.ratio, metrics.cosine_distance, metrics.is_cancelling, metrics.fill_ratios, metrics.fill):
    register_jitable(_part)


@cached
@_strict  # type: ignore[untyped-decorator]
def fill_all(cells: Any, elements: Any, reals: Any, counts: Any) -> None:
    """``metrics.fill`` every row."""
    for k in range(elements.shape[0]):
        metrics.fill(cells[k], elements[k], reals[k], counts[k])


@cached
@_fast  # type: ignore[untyped-decorator]
def exact_products(ref: Any, cand: Any, out: Any) -> None:
    """Inner products (dd, rr, rd, cc, rc) of the finite places, in float64 throughout."""
    zero = np.float64(0.0)
    dd, rr, rd, cc, rc = zero, zero, zero, zero, zero
    for i in range(ref.shape[0]):
        r, c = np.float64(load(ref, i)), np.float64(load(cand, i))
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
