"""From sums to numbers: what the cells that a pass filled mean, for many pairs at once.

Both passes (``kernels``, compiled; ``plain``, numpy) fill the same cells, and nothing but ``finish`` turns them
into a ``Diff``, so that the two can never disagree on what a number means. It works on columns, one place a pair:
a dump may hold twenty thousand small tensors, and Python is slower than measuring one. Pairs whose sums do not
carry the answer (non-finite places, squares that overflow, angles that cancel) are mended first, one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.sums import (
    BUCKETS,
    FIRST_NAN,
    INF_APART,
    NAN_APART,
    NAN_REF,
    PEAKS,
    ROWS,
    SUM_DD,
    TOTALS,
    WHERE,
    WIDTH,
    Cells,
    Diff,
    Products,
    lengths,
)

Column = NDArray[np.float64]
SumAgain = Callable[[int, float], Products[float]]
"""Products in float64 of one of the pairs times a factor, should its sums not carry them."""


def finish(elements: Sequence[int], shapes: Sequence[tuple[int, ...]], cells: Cells, again: SumAgain) -> list[Diff]:
    """Say what the cells, a row for each pair, mean for tensors of these sizes and shapes."""
    if not elements:
        return []
    with np.errstate(all="ignore"):  # NaN and infinities are answers here
        columns = _columns(np.array(elements), cells, again)
        return list(map(Diff, *columns, _profiles(elements, cells), shapes))


class _Totals(NamedTuple):
    """What a pair's numbers are made of: the sums, and the products that ratios and angles are of."""

    total_abs: Column
    dd: Column
    rr: Column
    products: Products[Column]


def _columns(elements: NDArray[np.int64], cells: Cells, again: SumAgain) -> list[list[Any]]:
    """Every field of a ``Diff`` but the last two, as lists."""
    n = np.maximum(elements, 1)
    peaks, places = cells[:, PEAKS:WHERE].copy(), cells[:, WHERE:NAN_REF].copy()
    totals = _totals(cells)
    poison = _poison(cells)
    _mend(cells, totals, peaks, places, poison, again)
    mse, counts = totals.dd / n, cells[:, NAN_REF:NAN_APART].astype(np.int64)
    _, rr, _, _, rc = totals.products
    found = (
        peaks[:, 0], places[:, 0].astype(np.int64), peaks[:, 1], places[:, 1].astype(np.int64),
        totals.total_abs / n, mse, np.sqrt(mse),
        _ratio(np.where(poison, poison, totals.products.dd), rr),
        np.where(poison, np.nan, cosine_distance(totals.products)),
        cells[:, ROWS - 1].astype(np.int64), elements,
    )  # fmt: skip
    nans, infs = (list(map(tuple, pair.tolist())) for pair in (counts[:, :2], counts[:, 2:]))
    apart = (cells[:, NAN_APART] + cells[:, INF_APART]).astype(np.int64)
    scale = np.where((rr != 0) & (poison == 0), rc / rr, np.nan)
    last = (apart, np.sqrt(totals.rr / n), scale)
    return [*(column.tolist() for column in found), nans, infs, *(column.tolist() for column in last)]


def _totals(cells: Cells) -> _Totals:
    total_abs, dd, rr, rd, _ = cells[:, TOTALS:ROWS].copy().T
    products = Products(dd.copy(), rr.copy(), rd, np.maximum(0.0, rr + 2 * rd + dd), rr + rd)
    return _Totals(total_abs, dd, rr, products)


def _poison(cells: Cells) -> Column:
    """What every distance of a pair is, where a NaN or an infinity stands on one side only; 0 elsewhere."""
    return np.where(cells[:, NAN_APART] > 0, np.nan, np.where(cells[:, INF_APART] > 0, np.inf, 0.0))


def _mend(cells: Cells, totals: _Totals, peaks: Cells, places: Cells, poison: Column, again: SumAgain) -> None:
    """Put right what the sums do not carry."""
    for k in np.flatnonzero(poison):
        peaks[k] = totals.total_abs[k] = totals.dd[k] = poison[k]
        places[k] = cells[k, FIRST_NAN if math.isnan(poison[k]) else FIRST_NAN + 1]
    factors = _summing_factors(totals.products, peaks[:, 0])
    for k in np.flatnonzero((factors != 0) & (poison == 0)):
        for column, exact in zip(totals.products, again(int(k), float(factors[k])), strict=True):
            column[k] = exact


def _summing_factors(products: Products[Column], max_abs: Column) -> Column:
    """By what to multiply before summing again; 0 if the sums serve. Ratios and angles have no scale."""
    dd, rr = products.dd, products.rr
    overflows, vanishes = np.isinf(dd) | np.isinf(rr), (dd == 0) & (max_abs > 0)
    return np.select([overflows, vanishes, _is_cancelling(products)], [2.0**-600, 2.0**600, 1.0])


def _is_cancelling(p: Products[Column]) -> NDArray[np.bool_]:
    """Whether the cosine hangs on more digits than block sums have."""
    across = p.dd - p.rd * (p.rd / p.rr)
    return (p.dd > 0) & (p.rr > 0) & ((across < 1e-3 * p.dd) | (p.cc < 1e-3 * np.maximum(p.rr, p.dd)))


def _ratio(dd: Column, rr: Column) -> Column:
    """||d|| / ||r||, with an error against nothing being infinite and no error being none."""
    against_nothing = np.where(dd == 0, 0.0, dd * np.inf)
    return np.where(rr != 0, np.sqrt(dd) / np.sqrt(rr), against_nothing)


def cosine_distance(p: Products[Column]) -> Column:
    """1 - cos(ref, cand), from the candidate's part across the reference, so that small angles stay true.

    Two zero tensors point the same way (0); one zero tensor points nowhere (1).
    """
    cosine = p.rc / np.sqrt(p.rr) / np.sqrt(p.cc)
    # Of the two ways to the candidate's part across the reference, the one that cancels less.
    across = np.where(p.dd < p.cc, p.dd - p.rd * (p.rd / p.rr), p.cc - p.rc * (p.rc / p.rr))
    near = np.maximum(0.0, across) / p.cc / (1 + np.minimum(cosine, 1.0))
    of_nothing = np.where(p.rr == p.cc, 0.0, 1.0)
    return np.where((p.rr == 0) | (p.cc == 0), of_nothing, np.where(cosine <= 0, np.minimum(2.0, 1 - cosine), near))


def _profiles(elements: Sequence[int], cells: Cells) -> list[NDArray[np.float32]]:
    """RMS error of each stretch, enough to draw; what is too large for float32 is drawn as infinite."""
    squares = cells[:, ROWS + SUM_DD :: WIDTH]
    drawn = list(np.sqrt(squares / np.array([lengths(n) for n in elements])).astype(np.float32))
    return [row if n >= BUCKETS else row[:n] for n, row in zip(elements, drawn, strict=True)]
