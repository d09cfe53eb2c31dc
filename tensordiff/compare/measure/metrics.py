"""Turn accumulated cells into a ``Diff``: the definition of every number.

Both passes fill the same cells, and ``fill`` defines what they mean. For twenty thousand small tensors, as a dump may
hold, ``fill`` takes longer than measuring, so the compiled pass has ``td_fill``, which must give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.measure.diff import (
    BUCKETS,
    FIRST_INF,
    FIRST_NAN,
    INF_APART,
    INF_CAND,
    INF_REF,
    NAN_APART,
    NAN_CAND,
    NAN_REF,
    OUTSIDE,
    PEAKS,
    SQUARES,
    SUM_ABS,
    SUM_DD,
    SUM_RD,
    SUM_RR,
    TOTALS,
    WHERE,
    Cells,
    Diff,
    Products,
    WideDiff,
    lengths,
)

Numbers = NDArray[Any]

# ``fill`` writes real numbers in the order of ``Diff`` and a flag for sums that cancel,
REALS = 10
RMS, REL_L2, COSINE, REF_RMS, SCALE, CANCELS = range(4, REALS)
# and whole numbers.
COUNTS = 8
OUTSIDES, APART = 2, 7
_LEAST_SUM, _MOST_SUM = 1e-290, 1e300  # sums of squares in float64; of a smaller sum some part has vanished
_LEAST_DRAWN, _MOST_DRAWN = 1e-30, 1e38  # errors that float32 holds with all its digits, for a profile


class SecondSums(NamedTuple):
    """Reads a pair again, given its number, if the first sums are not precise enough."""

    products: Callable[[int], Products]
    """Inner products in float64."""
    wide: Sequence[int]
    """The pairs that hold float64."""
    measure_wide: Callable[[int], WideDiff]
    """Sums such a pair on another scale."""


def diffs_from_cells(
    elements: Sequence[int],
    shapes: Sequence[tuple[int, ...]],
    cells: Cells,
    second: SecondSums,
    fill_all: FillAll | None,
) -> list[Diff]:
    """The diff of each pair, from its row of cells, its size and its shape."""
    if not elements:
        return []
    reals, counts = np.empty((len(elements), REALS)), np.empty((len(elements), COUNTS), np.int64)
    (fill_all or fill_in_python)(cells, np.array(elements), reals, counts)
    profiles, wide = _profiles(elements, cells), _beyond_squares(cells, second.wide)
    for k in set(np.flatnonzero(reals[:, CANCELS]).tolist()) - wide:
        products = second.products(k)
        fill_ratios(products.dd, products.rr, products.rd, products.cc, products.rc, reals[k])
        if products.cc < _LEAST_SUM and k in second.wide:
            wide.add(k)
    for k in wide:
        profiles[k] = _fill_wide(second.measure_wide(k), reals[k], counts[k])
    return list(map(_diff, reals.tolist(), counts.tolist(), elements, profiles, shapes))


def _beyond_squares(cells: Cells, wide: Sequence[int]) -> set[int]:
    """Those pairs with float64 whose sums overflowed or vanished."""
    if not wide:
        return set()
    rows = cells[wide]
    dd, rr = rows[:, TOTALS + SUM_DD], rows[:, TOTALS + SUM_RR]
    has_vanished = (rr < _LEAST_SUM) | ((dd < _LEAST_SUM) & (rows[:, PEAKS] > 0))
    has_overflowed = ~(np.abs(rows[:, TOTALS : TOTALS + OUTSIDE]) < _MOST_SUM).all(axis=1)  # true for NaN
    is_beyond = has_vanished | has_overflowed
    return {wide[place] for place in np.flatnonzero(is_beyond).tolist()}


def _fill_wide(found: WideDiff, reals: Numbers, counts: Numbers) -> NDArray[np.float64]:
    """Replace the numbers from the cells by those of another scale; if the sides stand apart, few of them are
    defined."""
    reals[REF_RMS], counts[OUTSIDES] = found.ref_rms, found.outside
    if not counts[APART]:
        reals[:RMS] = found.max_abs, found.max_rel, found.mean_abs, found.mse
        reals[RMS:REF_RMS] = found.rms, found.rel_l2, found.cosine_distance
        reals[SCALE], counts[:OUTSIDES] = found.scale, (found.max_abs_at, found.max_rel_at)
    return found.bucket_rms


def _diff(reals: list[float], counts: list[int], elements: int, profile: Profile, shape: tuple[int, ...]) -> Diff:
    max_abs, max_rel, mean_abs, mse, rms, rel_l2, cosine, ref_rms, scale, _ = reals
    at_abs, at_rel, outside, nan_ref, nan_cand, inf_ref, inf_cand, apart = counts
    nan, inf = _shared_counts(nan_ref, nan_cand), _shared_counts(inf_ref, inf_cand)
    if not (max_abs or max_rel or mean_abs or mse or rms or apart):
        # In a large dump most rows may be equal. They share their zeros, which otherwise take as much memory as all the
        # rest.
        return Diff(
            0.0, at_abs, 0.0, at_rel, 0.0, 0.0, 0.0, 0.0 if rel_l2 == 0 else rel_l2, 0.0 if cosine == 0 else cosine,
            outside, elements, nan, inf, 0, ref_rms, 1.0 if scale == 1 else scale, _zeros(len(profile)),
            _shared_shape(shape),
        )  # fmt: skip
    return tuple.__new__(Diff, (  # in half the time of ``Diff(…)``
        max_abs, at_abs, max_rel, at_rel, mean_abs, mse, rms, rel_l2, cosine, outside, elements,
        nan, inf, apart, ref_rms, scale, profile, _shared_shape(shape), False,
    ))  # fmt: skip


@lru_cache(maxsize=1024)
def _shared_counts(ref: int, cand: int) -> tuple[int, int]:
    """A pair of counts; the tuple is shared by all pairs with the same counts."""
    return ref, cand


@lru_cache(maxsize=1024)
def _shared_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape; the tuple is shared by all pairs of that shape."""
    return shape


@cache
def _zeros(count: int) -> Profile:
    """The profile of equal pairs, shared by all of them."""
    zeros = np.zeros(count, np.float32)
    zeros.flags.writeable = False
    return zeros


FillAll = Callable[[Cells, NDArray[np.int64], Numbers, Numbers], None]


def fill_in_python(cells: Cells, elements: NDArray[np.int64], reals: Numbers, counts: Numbers) -> None:
    """Apply ``fill`` to every row."""
    for k in range(len(elements)):
        fill(cells[k].tolist(), int(elements[k]), reals[k], counts[k])


def fill(cells: Any, elements: int, reals: Any, counts: Any) -> None:
    """All numbers of a pair except its profile. If sums cancel, ``fill_ratios`` is called again with better
    products."""
    n = max(elements, 1)
    max_abs, max_rel, at_abs, at_rel = cells[PEAKS], cells[PEAKS + 1], cells[WHERE], cells[WHERE + 1]
    total_abs, dd = cells[TOTALS + SUM_ABS], cells[TOTALS + SUM_DD]
    rr, rd = cells[TOTALS + SUM_RR], cells[TOTALS + SUM_RD]
    cc, rc = max(0.0, rr + 2 * rd + dd), rr + rd
    cancels = is_cancelling(dd, rr, rd, cc)
    is_apart = cells[NAN_APART] > 0 or cells[INF_APART] > 0
    if is_apart:
        max_abs = math.nan if cells[NAN_APART] > 0 else math.inf
        at_abs = cells[FIRST_NAN] if cells[NAN_APART] > 0 else cells[FIRST_INF]
        max_rel, at_rel, total_abs, dd, cancels = max_abs, at_abs, max_abs, max_abs, False
    reals[0], reals[1], reals[2], reals[3] = max_abs, max_rel, total_abs / n, dd / n
    reals[RMS], reals[REF_RMS], reals[CANCELS] = math.sqrt(dd / n), math.sqrt(rr / n), 1.0 if cancels else 0.0
    fill_ratios(dd, rr, rd, cc, rc, reals)
    if is_apart:
        reals[REL_L2], reals[COSINE], reals[SCALE] = max_abs, math.nan, math.nan
    counts[0], counts[1], counts[OUTSIDES] = int(at_abs), int(at_rel), int(cells[TOTALS + OUTSIDE])
    counts[3], counts[4], counts[5], counts[6] = (
        int(cells[NAN_REF]), int(cells[NAN_CAND]), int(cells[INF_REF]), int(cells[INF_CAND])
    )  # fmt: skip
    counts[APART] = int(cells[NAN_APART] + cells[INF_APART])


def fill_ratios(dd: float, rr: float, rd: float, cc: float, rc: float, reals: Any) -> None:
    """The scale-free numbers: rel_l2, the cosine distance, the best-fitting factor."""
    reals[REL_L2] = ratio(dd, rr)
    reals[COSINE] = cosine_distance(dd, rr, rd, cc, rc)
    reals[SCALE] = rc / rr if rr != 0 else math.nan


def is_cancelling(dd: float, rr: float, rd: float, cc: float) -> bool:
    """Whether the cosine depends on digits that sums of blocks do not have."""
    return dd > 0 and rr > 0 and (dd - rd * (rd / rr) < 1e-3 * dd or cc < 1e-3 * max(rr, dd))


def ratio(dd: float, rr: float) -> float:
    """|d|| / ||r||; for a zero reference it is 0 without an error and infinite with one."""
    if rr != 0:
        return math.sqrt(dd) / math.sqrt(rr)
    return 0.0 if dd == 0 else dd * math.inf


def cosine_distance(dd: float, rr: float, rd: float, cc: float, rc: float) -> float:
    """1 - cos(ref, cand), from the component orthogonal to the reference, so that small angles stay precise.

    Two zero tensors point the same way (0); one zero tensor points nowhere (1).
    """
    if rr == 0 or cc == 0:
        return 0.0 if rr == cc else 1.0
    cosine = rc / math.sqrt(rr) / math.sqrt(cc)
    if cosine <= 0:
        return min(2.0, 1 - cosine)
    # Two formulas give the orthogonal component; take the one with less cancellation.
    across = dd - rd * (rd / rr) if dd < cc else cc - rc * (rc / rr)
    return max(0.0, across) / cc / (1 + min(cosine, 1.0))


Profile = NDArray[np.floating[Any]]


def _profiles(elements: Sequence[int], cells: Cells) -> list[Profile]:
    """RMS error of each bucket, precise enough to draw: in float32 unless that cannot hold it."""
    squares = cells[:, SQUARES:]
    held = lengths(elements[0]) if len(set(elements)) == 1 else np.array([lengths(n) for n in elements])
    with np.errstate(all="ignore"):
        exact = np.sqrt(squares / held)
        drawn: list[Profile] = list(exact.astype(np.float32))
    for k, largest in enumerate(exact.max(axis=1).tolist()):
        if largest > _MOST_DRAWN or 0 < largest < _LEAST_DRAWN:
            drawn[k] = exact[k]
    return [row if n >= BUCKETS else row[:n] for n, row in zip(elements, drawn, strict=True)]
