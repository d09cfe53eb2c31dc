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
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BUCKETS = 32
"""How many stretches of the flattened tensor the profile tells apart."""
REL_GUARD = 1e-10
"""max_rel is |cand - ref| / max(|ref|, this), as MAX's tools have it."""

# Columns of Sums.rows, one row a bucket.
SUM_ABS, SUM_DD, SUM_RR, SUM_RD, OUTSIDE = range(5)
# Places in Sums.odd. "Apart": non-finite on one side only, or differently on both.
NAN_REF, NAN_CAND, INF_REF, INF_CAND, NAN_APART, INF_APART, FIRST_NAN, FIRST_INF = range(8)

Index = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sums:
    """What one pass over a pair collects. ``d`` is cand - ref, ``r`` is ref."""

    elements: int
    rows: NDArray[np.float64]
    """(buckets, 5): sums of |d|, d², r², r·d, and how many lie outside the tolerance."""
    peaks: NDArray[np.float64]
    """Largest |d| and largest relative error among finite elements."""
    where: NDArray[np.int64]
    """Flat positions of the two."""
    odd: NDArray[np.int64]
    """Counts and first places of non-finite values."""

    @staticmethod
    def empty(elements: int) -> Sums:
        """Nothing collected yet."""
        odd = np.zeros(8, np.int64)
        odd[FIRST_NAN:] = elements
        return Sums(elements, np.zeros((min(BUCKETS, elements), 5)), np.zeros(2), np.zeros(2, np.int64), odd)

    def add(self, other: Sums) -> None:
        """Take in another part of the same pair."""
        self.rows[:] += other.rows
        for k in range(2):
            better = other.peaks[k] > self.peaks[k]
            if better or (other.peaks[k] == self.peaks[k] and other.where[k] < self.where[k]):
                self.peaks[k], self.where[k] = other.peaks[k], other.where[k]
        self.odd[:FIRST_NAN] += other.odd[:FIRST_NAN]
        self.odd[FIRST_NAN:] = np.minimum(self.odd[FIRST_NAN:], other.odd[FIRST_NAN:])


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


@dataclass(frozen=True, slots=True)
class Diff:
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
    profile: tuple[float, ...]
    """Relative error of each stretch of the flattened tensor: its RMS error over the whole reference's RMS."""
    shape: tuple[int, ...]

    @property
    def max_abs_index(self) -> Index | None:
        """Where the largest error stands; None in an empty tensor."""
        return _unravel(self.max_abs_at, self.shape) if self.elements else None

    @property
    def max_rel_index(self) -> Index | None:
        """Where the largest relative error stands; None in an empty tensor."""
        return _unravel(self.max_rel_at, self.shape) if self.elements else None

    def as_json(self) -> dict[str, Any]:
        """The contract's object; ``nan`` and ``inf`` stay floats here."""
        named = {name: getattr(self, name) for name in _JSON_FIELDS}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in named.items()}


def finish(sums: Sums, shape: tuple[int, ...], sum_again: Callable[[float], Products]) -> Diff:
    """Say what the sums mean for a tensor of this shape.

    ``sum_again`` gives products in float64 of the tensors times a factor, should these sums not carry them.
    """
    n = sums.elements
    if not n:
        return replace(_NOTHING, shape=shape)
    total_abs, dd, rr, rd, outside = np.add.reduce(sums.rows).tolist()
    products = Products(dd, rr, rd, max(0.0, rr + 2 * rd + dd), rr + rd)
    odd, (max_abs, max_rel), (at_abs, at_rel) = sums.odd.tolist(), sums.peaks.tolist(), sums.where.tolist()
    poison = _poison(odd)
    if poison:
        max_abs = max_rel = total_abs = dd = poison
        at_abs = at_rel = odd[FIRST_NAN] if odd[NAN_APART] else odd[FIRST_INF]
    elif (factor := _summing_factor(products, max_abs)) is not None:
        products = sum_again(factor)
    return Diff(
        max_abs=max_abs,
        max_abs_at=at_abs,
        max_rel=max_rel,
        max_rel_at=at_rel,
        mean_abs=total_abs / n,
        mse=dd / n,
        rms=math.sqrt(dd / n),
        rel_l2=_ratio(poison or products.dd, products.rr),
        cosine_distance=math.nan if poison else cosine_distance(products),
        outside=int(outside),
        elements=n,
        nan=(odd[NAN_REF], odd[NAN_CAND]),
        inf=(odd[INF_REF], odd[INF_CAND]),
        apart=odd[NAN_APART] + odd[INF_APART],
        ref_rms=math.sqrt(rr / n),
        scale=products.rc / products.rr if products.rr and not poison else math.nan,
        profile=_profile(sums.rows, n, rr),
        shape=shape,
    )


_NOTHING = Diff(0.0, 0, 0.0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, (0, 0), (0, 0), 0, 0.0, math.nan, (), ())


def _summing_factor(products: Products, max_abs: float) -> float | None:
    """By what to multiply before summing again; None if the sums serve. Ratios and angles have no scale."""
    if math.inf in (products.dd, products.rr):
        return 2.0**-600
    if products.dd == 0 and max_abs > 0:
        return 2.0**600
    return 1.0 if products.is_cancelling else None


def _poison(odd: list[int]) -> float:
    """What a distance is when non-finite values stand apart: NaN, inf, or 0 for no such thing."""
    if odd[NAN_APART]:
        return math.nan
    return math.inf if odd[INF_APART] else 0.0


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


def _unravel(flat: int, shape: tuple[int, ...]) -> Index:
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


def _profile(rows: NDArray[np.float64], elements: int, rr: float) -> tuple[float, ...]:
    squares = rows[:, SUM_DD] / _lengths(elements)
    if 0 < rr < math.inf:
        return tuple(np.sqrt(squares / (rr / elements)).tolist())
    return tuple(math.inf if square else 0.0 for square in squares.tolist())
