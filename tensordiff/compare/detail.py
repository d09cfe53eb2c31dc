"""A closer look at one pair, on request: worst elements, error along an axis, how errors are spread.

These read the pair again, in parts; the numbers every pair gets are ``measure``'s.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.measure import flat_parts
from tensordiff.compare.plain import difference
from tensordiff.compare.sums import unravel
from tensordiff.dump.dtypes import Array

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a pair."""

    index: tuple[int, ...]
    reference: float
    candidate: float
    error: float
    """|candidate - reference|; NaN or infinite where one side is and the other is not the same."""


class Histogram(NamedTuple):
    """How many errors lie in each decade. ``zero`` are equal, ``odd`` stand apart by NaN or infinity."""

    decades: tuple[int, ...]
    """log10 of the lower edge of each bin."""
    counts: tuple[int, ...]
    zero: int
    odd: int


def worst(ref: Array, cand: Array, k: int = 10) -> list[Element]:
    """The k largest errors, largest first; NaN is larger than anything; the first of equals first."""
    found: list[tuple[float, int, float, float, float]] = []
    for offset, r, c, error in element_errors(ref, cand):
        rank = np.where(np.isnan(error), math.inf, error)
        top = np.argsort(-rank, kind="stable")[:k]
        places = zip(top.tolist(), rank[top].tolist(), strict=True)
        found += ((-size, offset + at, float(r[at]), float(c[at]), float(error[at])) for at, size in places)
        found = heapq.nsmallest(k, found, key=lambda item: item[:2])
    return [Element(unravel(at, ref.shape), r, c, error) for _, at, r, c, error in found if error != 0]


def along(ref: Array, cand: Array, axis: int) -> Floats:
    """Relative error of each slice along an axis: its RMS error over the whole reference's RMS."""
    ref, cand = np.moveaxis(ref, axis, 0), np.moveaxis(cand, axis, 0)
    sums = np.zeros((len(ref), 2))
    for place, (r_slice, c_slice) in enumerate(zip(ref, cand, strict=True)):
        for _, r, _, error in element_errors(r_slice, c_slice):
            sums[place] += np.square(error).sum(), np.square(r[np.isfinite(r)]).sum()
    errors = np.sqrt(sums[:, 0] / max(1, ref.size // max(1, len(ref))))
    size = math.sqrt(sums[:, 1].sum() / ref.size) if ref.size else 0.0
    return errors / size if size else np.where(errors > 0, math.inf, 0.0)


def histogram(ref: Array, cand: Array) -> Histogram:
    """Errors counted by decade."""
    counts: dict[int, int] = {}
    zero = odd = 0
    for _, _, _, error in element_errors(ref, cand):
        finite = error[np.isfinite(error)]
        odd += error.size - finite.size
        zero += int(np.count_nonzero(finite == 0))
        decades = np.floor(np.log10(finite[finite > 0])).astype(int)
        for decade, count in zip(*np.unique(decades, return_counts=True), strict=True):
            counts[int(decade)] = counts.get(int(decade), 0) + int(count)
    span = tuple(range(min(counts), max(counts) + 1)) if counts else ()
    return Histogram(span, tuple(counts.get(decade, 0) for decade in span), zero, odd)


def element_errors(ref: Array, cand: Array) -> Iterator[tuple[int, Floats, Floats, Floats]]:
    """Flat parts of the pair with their |error|; equal non-finite values have none."""
    for offset, r, c in flat_parts(ref, cand):
        with np.errstate(all="ignore"):
            error = np.abs(difference(r, c))
            wide_r, wide_c = r.astype(np.float64), c.astype(np.float64)
            same = (wide_r == wide_c) | (np.isnan(wide_r) & np.isnan(wide_c))
            yield offset, wide_r, wide_c, np.where(same & ~np.isfinite(error), 0.0, error)
