"""From accumulated cells to a ``Diff``: the definition of every number.

Both passes (``kernels``, compiled, and ``numpy_pass``) fill the same cells, and only ``fill`` says what they mean, so
that the two cannot disagree about what a number is. ``fill`` handles one pair and uses only what numba compiles:
``kernels`` compiles it too, because for the twenty thousand small tensors a dump may hold, running it in Python would
take longer than measuring them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

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
    lengths,
)

SumAgain = Callable[[int, float], Products]
"""Sums a pair again in float64, scaled by a factor, where the first sums were not precise enough."""
Numbers = NDArray[Any]

# What ``fill`` writes for a pair: real numbers in the order of ``Diff``, then the factor to sum again with ...
REALS = 10
RMS, REF_RMS, FACTOR = 4, 7, 9
# ... and whole numbers.
COUNTS = 8


def diffs_from_cells(
    elements: Sequence[int], shapes: Sequence[tuple[int, ...]], cells: Cells, again: SumAgain, fill_all: FillAll | None
) -> list[Diff]:
    """The diff of each pair, from its row of cells, its size and its shape."""
    if not elements:
        return []
    reals, counts = np.empty((len(elements), REALS)), np.empty((len(elements), COUNTS), np.int64)
    (fill_all or fill_in_python)(cells, np.array(elements), reals, counts)
    for k in np.flatnonzero(reals[:, FACTOR]).tolist():
        products = again(k, float(reals[k, FACTOR]))
        fill_ratios(products.dd, products.rr, products.rd, products.cc, products.rc, reals[k])
        _fill_roots(products, float(reals[k, FACTOR]), max(elements[k], 1), reals[k])
    return list(map(_diff, reals.tolist(), counts.tolist(), elements, _profiles(elements, cells), shapes))


def _fill_roots(products: Products, factor: float, n: int, reals: Numbers) -> None:
    """The RMS of the error and of the reference, where float64 holds them but not their squares."""
    for place, total in ((RMS, products.dd), (REF_RMS, products.rr)):
        if reals[place] in (0.0, math.inf) and 0 < total < math.inf:
            reals[place] = math.sqrt(total / n) / factor


def _diff(
    reals: list[float], counts: list[int], elements: int, profile: NDArray[np.float32], shape: tuple[int, ...]
) -> Diff:
    max_abs, max_rel, mean_abs, mse, rms, rel_l2, cosine, ref_rms, scale, _ = reals
    at_abs, at_rel, outside, nan_ref, nan_cand, inf_ref, inf_cand, apart = counts
    return Diff(
        max_abs, at_abs, max_rel, at_rel, mean_abs, mse, rms, rel_l2, cosine, outside, elements,
        (nan_ref, nan_cand), (inf_ref, inf_cand), apart, ref_rms, scale, profile, shape,
    )  # fmt: skip


FillAll = Callable[[Cells, NDArray[np.int64], Numbers, Numbers], None]


def fill_in_python(cells: Cells, elements: NDArray[np.int64], reals: Numbers, counts: Numbers) -> None:
    """``fill`` every row without loading the compiler."""
    for k in range(len(elements)):
        fill(cells[k].tolist(), int(elements[k]), reals[k], counts[k])


# --- compiled by kernels, too: change them, and the cached machine code in __pycache__ is stale ----


def fill(cells: Any, elements: int, reals: Any, counts: Any) -> None:
    """All numbers of a pair but its profile. Where the factor is not 0, ``fill_ratios`` needs better products."""
    n = max(elements, 1)
    max_abs, max_rel, at_abs, at_rel = cells[PEAKS], cells[PEAKS + 1], cells[WHERE], cells[WHERE + 1]
    total_abs, dd = cells[TOTALS + SUM_ABS], cells[TOTALS + SUM_DD]
    rr, rd = cells[TOTALS + SUM_RR], cells[TOTALS + SUM_RD]
    cc, rc = max(0.0, rr + 2 * rd + dd), rr + rd
    factor = summing_factor(dd, rr, rd, cc, max_abs)
    is_apart = cells[NAN_APART] > 0 or cells[INF_APART] > 0
    if is_apart:
        max_abs = math.nan if cells[NAN_APART] > 0 else math.inf
        at_abs = cells[FIRST_NAN] if cells[NAN_APART] > 0 else cells[FIRST_INF]
        max_rel, at_rel, total_abs, dd, factor = max_abs, at_abs, max_abs, max_abs, 0.0
    reals[0], reals[1], reals[2], reals[3] = max_abs, max_rel, total_abs / n, dd / n
    reals[RMS], reals[REF_RMS], reals[FACTOR] = math.sqrt(dd / n), math.sqrt(rr / n), factor
    fill_ratios(dd, rr, rd, cc, rc, reals)
    if is_apart:
        reals[6] = reals[8] = math.nan
    counts[0], counts[1], counts[2] = int(at_abs), int(at_rel), int(cells[TOTALS + OUTSIDE])
    counts[3], counts[4], counts[5], counts[6] = (
        int(cells[NAN_REF]), int(cells[NAN_CAND]), int(cells[INF_REF]), int(cells[INF_CAND])
    )  # fmt: skip
    counts[7] = int(cells[NAN_APART] + cells[INF_APART])


def fill_ratios(dd: float, rr: float, rd: float, cc: float, rc: float, reals: Any) -> None:
    """The scale-free numbers: rel_l2, the cosine distance, the factor that fits best."""
    reals[5] = ratio(dd, rr)
    reals[6] = cosine_distance(dd, rr, rd, cc, rc)
    reals[8] = rc / rr if rr != 0 else math.nan


def summing_factor(dd: float, rr: float, rd: float, cc: float, max_abs: float) -> float:
    """The factor to sum again with, where squares overflow, vanish or cancel; 0 where the sums are good enough."""
    if math.isinf(dd) or math.isinf(rr):
        return 2.0**-600
    if dd == 0 and max_abs > 0:
        return 2.0**600
    is_cancelling = dd > 0 and rr > 0 and (dd - rd * (rd / rr) < 1e-3 * dd or cc < 1e-3 * max(rr, dd))
    return 1.0 if is_cancelling else 0.0


def ratio(dd: float, rr: float) -> float:
    """||d|| / ||r||; with a zero reference it is 0 without an error and infinite with one."""
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
    # Two formulas give the orthogonal component; take the one that cancels less.
    across = dd - rd * (rd / rr) if dd < cc else cc - rc * (rc / rr)
    return max(0.0, across) / cc / (1 + min(cosine, 1.0))


def _profiles(elements: Sequence[int], cells: Cells) -> list[NDArray[np.float32]]:
    """RMS error of each bucket, precise enough to draw; float32 overflow is drawn as infinite."""
    squares = cells[:, SQUARES:]
    held = lengths(elements[0]) if len(set(elements)) == 1 else np.array([lengths(n) for n in elements])
    with np.errstate(over="ignore"):
        drawn = np.sqrt(squares / held).astype(np.float32)
    return [row if n >= BUCKETS else row[:n] for n, row in zip(elements, drawn, strict=True)]
