"""From sums to a diff: what one pass collects, and what is said from it.

Both passes (``kernels``, compiled; ``plain``, numpy) fill the same ``Sums``; ``finish`` alone
turns them into numbers, so that the two can never disagree on what a number means.

Non-finite values: a NaN or an infinity that stands in the same place on both sides agrees and adds
nothing. One that does not makes every distance NaN (or inf), and the first such place is where the
maximum stands. Norms of the reference are over its finite elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BUCKETS = 32
"""How many stretches of the flattened tensor the profile tells apart."""
REL_GUARD = 1e-10
"""max_rel is |cand - ref| / max(|ref|, this), as MAX's tools have it."""

# What a pass fills is one flat array of float64, so that a small pair costs one allocation. First two peaks (the
# largest error and the largest relative error of finite elements) and their flat positions ...
PEAKS, WHERE = 0, 2
# ... then counts and first places of non-finite values. "Apart": on one side only, or differently on both ...
NAN_REF, NAN_CAND, INF_REF, INF_CAND, NAN_APART, INF_APART, FIRST_NAN, FIRST_INF = range(4, 12)
# ... then sums of |d|, d², r², r·d, and how many elements lie outside the tolerance: of all, and for each bucket.
TOTALS, ROWS = 12, 17
SUM_ABS, SUM_DD, SUM_RR, SUM_RD, OUTSIDE = range(5)
WIDTH = 5

Index = tuple[int, ...]
Cells = NDArray[np.float64]


class Sums(NamedTuple):
    """What one pass over a pair collects. ``d`` is cand - ref, ``r`` is ref."""

    elements: int
    cells: Cells

    @staticmethod
    def empty(elements: int) -> Sums:
        """Nothing collected yet."""
        cells = np.zeros(ROWS + WIDTH * min(BUCKETS, elements))
        cells[FIRST_NAN:TOTALS] = elements
        return Sums(elements, cells)

    @property
    def rows(self) -> Cells:
        """The sums, one row a bucket."""
        return self.cells[ROWS:].reshape(-1, WIDTH)

    def add(self, other: Sums) -> None:
        """Take in another part of the same pair."""
        mine, theirs = self.cells, other.cells
        for peak, where in ((PEAKS, WHERE), (PEAKS + 1, WHERE + 1)):
            if (theirs[peak], -theirs[where]) > (mine[peak], -mine[where]):
                mine[peak], mine[where] = theirs[peak], theirs[where]
        mine[FIRST_NAN:TOTALS] = np.minimum(mine[FIRST_NAN:TOTALS], theirs[FIRST_NAN:TOTALS])
        mine[NAN_REF:FIRST_NAN] += theirs[NAN_REF:FIRST_NAN]
        mine[TOTALS:] += theirs[TOTALS:]


class Products(NamedTuple):
    """Inner products of a pair: ``d`` is cand - ref, ``r`` ref, ``c`` cand."""

    dd: float
    rr: float
    rd: float
    cc: float
    rc: float

    @property
    def is_cancelling(self) -> bool:
        """Whether the cosine hangs on more digits than block sums have."""
        dd, rr, rd, cc, _ = self
        if not (0 < dd < math.inf and 0 < rr < math.inf):
            return False
        return dd - rd * (rd / rr) < 1e-3 * dd or cc < 1e-3 * max(rr, dd)


_JSON_FIELDS = (
    "max_abs", "max_abs_index", "max_rel", "max_rel_index", "mean_abs", "mse", "rms", "rel_l2", "cosine_distance",
    "outside", "elements", "nan", "inf", "apart", "ref_rms", "scale",
)  # fmt: skip


class Diff(NamedTuple):
    """The numbers for one pair."""

    max_abs: float
    max_abs_at: int
    """Flat position; ``max_abs_index`` is the same by axis."""
    max_rel: float
    max_rel_at: int
    mean_abs: float
    mse: float
    rms: float
    rel_l2: float
    cosine_distance: float
    outside: int
    elements: int
    nan: tuple[int, int]
    inf: tuple[int, int]
    apart: int
    """Places where one side is NaN or infinite and the other is not the same."""
    ref_rms: float
    scale: float
    """The factor that best fits cand = factor * ref."""
    bucket_rms: NDArray[np.float32]
    """RMS error of each stretch of the flattened tensor."""
    shape: tuple[int, ...]

    @property
    def profile(self) -> tuple[float, ...]:
        """Relative error of each stretch: its RMS error over the whole reference's RMS."""
        if 0 < self.ref_rms < math.inf:
            return tuple((self.bucket_rms.astype(np.float64) / self.ref_rms).tolist())
        return tuple(math.inf if error else 0.0 for error in self.bucket_rms.tolist())

    @property
    def max_abs_index(self) -> Index | None:
        """Where the largest error stands; None in an empty tensor."""
        return unravel(self.max_abs_at, self.shape) if self.elements else None

    @property
    def max_rel_index(self) -> Index | None:
        """Where the largest relative error stands; None in an empty tensor."""
        return unravel(self.max_rel_at, self.shape) if self.elements else None

    def as_json(self) -> dict[str, Any]:
        """The contract's object; ``nan`` and ``inf`` stay floats here."""
        named = {name: getattr(self, name) for name in _JSON_FIELDS}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in named.items()}


def finish(sums: Sums, shape: tuple[int, ...], sum_again: Callable[[float], Products]) -> Diff:
    """Say what the sums mean for a tensor of this shape.

    ``sum_again`` gives products in float64 of the tensors times a factor, should these sums not carry them.
    """
    n, cells = sums
    if not n:
        return _NOTHING._replace(shape=shape)
    max_abs, max_rel, *counts, total_abs, dd, rr, rd, outside = cells[:ROWS].tolist()
    at_abs, at_rel, nan_ref, nan_cand, inf_ref, inf_cand, nan_apart, inf_apart, first_nan, first_inf = map(int, counts)
    products = Products(dd, rr, rd, max(0.0, rr + 2 * rd + dd), rr + rd)
    poison = math.nan if nan_apart else math.inf if inf_apart else 0.0
    if poison:
        max_abs = max_rel = total_abs = dd = poison
        at_abs = at_rel = first_nan if nan_apart else first_inf
    elif (factor := _summing_factor(products, max_abs)) is not None:
        products = sum_again(factor)
    return Diff(
        max_abs, at_abs, max_rel, at_rel,
        mean_abs=total_abs / n,
        mse=dd / n,
        rms=math.sqrt(dd / n),
        rel_l2=_ratio(poison or products.dd, products.rr),
        cosine_distance=math.nan if poison else cosine_distance(products),
        outside=int(outside),
        elements=n,
        nan=(nan_ref, nan_cand),
        inf=(inf_ref, inf_cand),
        apart=nan_apart + inf_apart,
        ref_rms=math.sqrt(rr / n),
        scale=products.rc / products.rr if products.rr and not poison else math.nan,
        bucket_rms=_bucket_rms(cells[ROWS + SUM_DD :: WIDTH] / _lengths(n), dd),
        shape=shape,
    )  # fmt: skip


_NOTHING = Diff(
    0.0, 0, 0.0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, (0, 0), (0, 0), 0, 0.0, math.nan, np.empty(0, np.float32), ()
)  # fmt: skip


def _summing_factor(products: Products, max_abs: float) -> float | None:
    """By what to multiply before summing again; None if the sums serve. Ratios and angles have no scale."""
    if math.inf in (products.dd, products.rr):
        return 2.0**-600
    if products.dd == 0 and max_abs > 0:
        return 2.0**600
    return 1.0 if products.is_cancelling else None


def _ratio(dd: float, rr: float) -> float:
    """||d|| / ||r||, with an error against nothing being infinite and no error being none."""
    if rr:
        return math.sqrt(dd) / math.sqrt(rr)
    return 0.0 if dd == 0 else dd * math.inf


def cosine_distance(p: Products) -> float:
    """1 - cos(ref, cand), from the candidate's part across the reference, so that small angles stay true.

    Two zero tensors point the same way (0); one zero tensor points nowhere (1).
    """
    if not p.rr or not p.cc:
        return 0.0 if p.rr == p.cc else 1.0
    cosine = p.rc / math.sqrt(p.rr) / math.sqrt(p.cc)
    if cosine <= 0:
        return min(2.0, 1 - cosine)
    # Of the two ways to the candidate's part across the reference, the one that cancels less.
    across = p.dd - p.rd * (p.rd / p.rr) if p.dd < p.cc else p.cc - p.rc * (p.rc / p.rr)
    return max(0.0, across) / p.cc / (1 + min(cosine, 1.0))


def unravel(flat: int, shape: tuple[int, ...]) -> Index:
    """A flat position by axis."""
    index = []
    for size in reversed(shape):
        flat, place = divmod(flat, size)
        index.append(place)
    return tuple(reversed(index))


@lru_cache(maxsize=1024)
def edges(elements: int) -> NDArray[np.int64]:
    """Where the buckets of the profile begin, and the end."""
    buckets = min(BUCKETS, elements)
    return np.arange(buckets + 1) * elements // max(buckets, 1)


@lru_cache(maxsize=1024)
def _lengths(elements: int) -> NDArray[np.float64]:
    return np.diff(edges(elements)).astype(np.float64)


def _bucket_rms(mean_squares: Cells, largest: float) -> NDArray[np.float32]:
    """Enough to draw; what is too large for float32 is drawn as infinite."""
    if largest < 1e70:
        return np.sqrt(mean_squares).astype(np.float32)
    with np.errstate(over="ignore"):
        return np.sqrt(mean_squares).astype(np.float32)
