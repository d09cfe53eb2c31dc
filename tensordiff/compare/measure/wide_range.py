"""Measure float64 pairs that plain sums of squares cannot: values beyond 1e154 or below 1e-154.

Their squares overflow or vanish, and the difference of two values may exceed the largest float although both are
finite. Both passes then return sums that are infinite, NaN or nearly zero; only such pairs are read again here. Each
sum is taken on its own scale: values are multiplied by a power of two, which rounds nothing, and the result is scaled
back. A result is right if float64 can hold it, and infinite otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.measure.diff import BUCKETS, REL_GUARD, WideDiff, cuts_within, edges, lengths
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.compare.measure.metrics import cosine_distance
from tensordiff.compare.measure.numpy_pass import STRETCH, difference
from tensordiff.dump.dtypes import Array

Floats = NDArray[np.float64]
FlatChunks = Callable[[], Iterator[tuple[int, Array, Array]]]
"""Yields a pair's flat chunks, each with its offset, from the beginning."""
_BEYOND = 1025
"""The exponent of a difference that float64 cannot hold."""
_ALIKE = 2  # powers of two by which both sides may differ and still share a scale


def measure_wide(chunks: FlatChunks, elements: int, tolerance: Tolerance) -> WideDiff:
    """Read a pair twice: for the largest values, which determine the scales, then for the sums."""
    with np.errstate(all="ignore"):
        peaks = _Peaks()
        for offset, r, c in _stretches(chunks):
            peaks.add(_Stretch(r, c), offset, tolerance)
        sums = _ScaledSums(elements, *peaks.exponents)
        for offset, r, c in _stretches(chunks):
            sums.add(_Stretch(r, c), offset)
        return sums.finish(peaks)


def _stretches(chunks: FlatChunks) -> Iterator[tuple[int, Array, Array]]:
    for offset, r, c in chunks():
        for begin in range(0, len(r), STRETCH):
            yield offset + begin, r[begin : begin + STRETCH], c[begin : begin + STRETCH]


class _Stretch:
    """A stretch of a pair in float64, with 0 at non-finite places; ``difference`` may have overflowed."""

    def __init__(self, ref: Array, cand: Array) -> None:
        r, c, d = ref.astype(np.float64), cand.astype(np.float64), difference(ref, cand)
        is_same = (r == c) | (np.isnan(r) & np.isnan(c))
        self.has_both: NDArray[np.bool_] = np.isfinite(r) & np.isfinite(c)
        self.apart = ~self.has_both & ~is_same
        self.r = np.where(np.isfinite(r), r, 0.0)
        self.c = np.where(self.has_both, c, 0.0)
        self.d = np.where(self.has_both, d, 0.0)
        self.overflows = np.isinf(self.d)

    def scaled_difference(self, exponent: int) -> Floats:
        """cand - ref divided by 2**exponent; where the difference overflows, the sides are scaled first."""
        beyond = np.ldexp(self.c, -exponent) - np.ldexp(self.r, -exponent)
        return np.where(self.overflows, beyond, np.ldexp(self.d, -exponent))


@dataclass
class _Peaks:
    """The largest errors, the number of elements outside, and the largest values of each side."""

    errors: list[float] = field(default_factory=lambda: [0.0, 0.0])
    places: list[int] = field(default_factory=lambda: [0, 0])
    outside: int = 0
    largest: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def add(self, part: _Stretch, offset: int, tolerance: Tolerance) -> None:
        """Add a stretch that begins at ``offset``."""
        error, size = np.abs(part.d), np.abs(part.r)
        relative = error / np.maximum(size, REL_GUARD)
        outside = error > tolerance.atol + tolerance.rtol * size
        if part.overflows.any():
            error_scaled, size_scaled = np.abs(part.scaled_difference(_BEYOND)), np.ldexp(size, -_BEYOND)
            allowed = math.ldexp(tolerance.atol, -_BEYOND) + tolerance.rtol * size_scaled
            relative = np.where(part.overflows, error_scaled / size_scaled, relative)
            outside = np.where(part.overflows, error_scaled > allowed, outside)
        self.outside += int(np.count_nonzero(outside | part.apart))
        for which, values in enumerate((error, relative)):
            place = int(values.argmax())
            if values[place] > self.errors[which]:
                self.errors[which], self.places[which] = float(values[place]), offset + place
        for side, values in enumerate((part.r, part.c)):
            self.largest[side] = max(self.largest[side], float(np.abs(values).max()))

    @property
    def exponents(self) -> tuple[int, int, int]:
        """The powers of two that bring the error, the reference and the candidate near 1."""
        error, ref, cand = (_exponent(value) for value in (self.errors[0], *self.largest))
        return error, ref, ref if abs(ref - cand) <= _ALIKE else cand


def _exponent(largest: float) -> int:
    return _BEYOND if math.isinf(largest) else math.frexp(largest)[1]


class _ScaledSums:
    """Sums of a pair, each on its own scale."""

    def __init__(self, elements: int, of_error: int, of_ref: int, of_cand: int) -> None:
        self.elements, self.exponents = elements, (of_error, of_ref, of_cand)
        self.sum_abs, self.dd, self.rr = 0.0, 0.0, 0.0
        self.products = np.zeros(5)
        """Products for the cosine, which does not depend on scale: of r and c on their scales, and of their
        difference."""
        self.squares = np.zeros(BUCKETS)

    def add(self, part: _Stretch, offset: int) -> None:
        """Add a stretch that begins at ``offset``."""
        of_error, of_ref, of_cand = self.exponents
        d, whole_r = part.scaled_difference(of_error), np.ldexp(part.r, -of_ref)
        self.sum_abs += float(np.abs(d).sum())
        self.dd += float(np.dot(d, d))
        self.rr += float(np.dot(whole_r, whole_r))
        r, c = np.where(part.has_both, whole_r, 0.0), np.ldexp(part.c, -of_cand)
        between = part.scaled_difference(of_ref) if of_ref == of_cand else c - r
        between = np.where(part.has_both, between, 0.0)
        dots = ((between, between), (r, r), (r, between), (c, c), (r, c))
        self.products += [float(np.dot(one, other)) for one, other in dots]
        cuts, first = cuts_within(edges(self.elements), offset, len(d))
        self.squares[first : first + len(cuts)] += np.add.reduceat(d * d, cuts)

    def finish(self, peaks: _Peaks) -> WideDiff:
        """The numbers, scaled back."""
        of_error, of_ref, of_cand = self.exponents
        _, rr, _, _, rc = self.products.tolist()
        n = max(self.elements, 1)
        bucket_rms = np.ldexp(np.sqrt(self.squares / lengths(self.elements)), of_error)
        return WideDiff(
            max_abs=peaks.errors[0], max_abs_at=peaks.places[0], max_rel=peaks.errors[1], max_rel_at=peaks.places[1],
            outside=peaks.outside, mean_abs=_scaled(self.sum_abs / n, of_error),
            rms=_scaled(math.sqrt(self.dd / n), of_error), ref_rms=_scaled(math.sqrt(self.rr / n), of_ref),
            rel_l2=self._rel_l2(), cosine_distance=cosine_distance(*self.products.tolist()),
            scale=_scaled(rc / rr, of_cand - of_ref) if rr else math.nan,
            bucket_rms=bucket_rms[: min(BUCKETS, self.elements)],
        )  # fmt: skip

    def _rel_l2(self) -> float:
        if self.dd == 0:
            return 0.0
        if self.rr == 0:
            return math.inf
        return _scaled(math.sqrt(self.dd) / math.sqrt(self.rr), self.exponents[0] - self.exponents[1])


def _scaled(value: float, exponent: int) -> float:
    """The value times a power of two; infinite if float64 cannot hold it."""
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(math.inf, value)
