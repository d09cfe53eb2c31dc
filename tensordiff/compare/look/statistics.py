"""Statistics of one tensor, in float64 and in chunks: extremes, mean, RMS, and the distribution of its values.

``inspect`` shows the ``Statistics`` of every entry; the layer screen adds standard deviation, zeros and quantiles
(``Distribution``). Everything covers all elements, except that the quantiles of a large tensor come from an evenly
spaced sample, which is marked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.dump.dtypes import Array

_CHUNK = 1 << 18


@dataclass(frozen=True)
class Statistics:
    """Statistics of the finite elements; None if there are none."""

    minimum: float | None
    maximum: float | None
    mean: float | None
    rms: float | None
    nan: int
    inf: int

    def as_json(self) -> dict[str, Any]:
        """The fields as a dict."""
        return asdict(self)


NOTHING = Statistics(None, None, None, None, 0, 0)
"""The statistics of an empty tensor."""


class _Sums:
    """Sum and sum of squares, scaled by a power of two so that neither overflows nor vanishes."""

    def __init__(self) -> None:
        self.count, self.exponent, self.total, self.squares = 0, -(1 << 12), 0.0, 0.0

    def add(self, values: NDArray[np.float64]) -> None:
        """Add some finite values."""
        self.count += values.size
        if peak := float(np.abs(values).max()):
            self._hold(math.frexp(peak)[1])
            scaled = np.ldexp(values, -self.exponent)
            self.total += float(scaled.sum())
            self.squares += float(np.dot(scaled, scaled))

    def _hold(self, exponent: int) -> None:
        if exponent > self.exponent:
            self.total = math.ldexp(self.total, self.exponent - exponent)
            self.squares = math.ldexp(self.squares, 2 * (self.exponent - exponent))
            self.exponent = exponent

    @property
    def mean(self) -> float:
        return math.ldexp(self.total / self.count, self.exponent)

    @property
    def rms(self) -> float:
        return math.ldexp(math.sqrt(self.squares / self.count), self.exponent)


def statistics(array: Array) -> Statistics:
    """Read a tensor once. Real and imaginary parts of complex numbers count separately."""
    latest = NOTHING
    for latest in statistics_so_far(array):  # noqa: B007 - the last one is of the whole
        pass
    return latest


def statistics_so_far(array: Array) -> Iterator[Statistics]:
    """The statistics after each chunk, for callers that may stop."""
    sums, ends, nan, inf = _Sums(), list[float](), 0, 0
    for part, values in real_chunks(array):
        nan += int(np.count_nonzero(np.isnan(values)))
        inf += int(np.count_nonzero(np.isinf(values)))
        values = values[np.isfinite(values)]
        if values.size:
            sums.add(values)
            ends = _ends(part, values, ends)
        if sums.count:
            yield Statistics(ends[0], ends[1], sums.mean, sums.rms, nan, inf)
        else:
            yield Statistics(None, None, None, None, nan, inf)


def real_chunks(array: Array) -> Iterator[tuple[Array, NDArray[np.float64]]]:
    """A tensor in flat chunks, as stored and in float64; a complex number becomes two reals."""
    flat = array.reshape(-1)
    for begin in range(0, flat.size, _CHUNK):
        part = flat[begin : begin + _CHUNK]
        yield part, part.astype(np.complex128 if array.dtype.kind == "c" else np.float64).view(np.float64)


def _ends(part: Array, values: NDArray[np.float64], before: list[float]) -> list[float]:
    """The smallest and the largest value so far. Integers beyond 2^53 stay integers instead of becoming the nearest
    float."""
    of: Array = part if part.dtype.kind in "iu" else values
    ends = [*before, of.min().item(), of.max().item()]
    return [min(ends), max(ends)]


QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
SAMPLED = 1 << 21
"""The number of elements that quantiles are computed from; a larger tensor is sampled at even spacing."""


class Distribution(NamedTuple):
    """Distribution of the finite elements; None if there are none, or not known yet."""

    statistics: Statistics
    elements: int
    """The number of reals: a complex number counts as two."""
    std: float | None = None
    zeros: int = 0
    quantiles: tuple[float, ...] = ()
    sampled: bool = False
    """Whether the quantiles come from a sample."""


def distribution(array: Array) -> Iterator[Distribution]:
    """Read a tensor twice. Yields what is known so far; the last result is complete."""
    elements = array.size * (2 if array.dtype.kind == "c" else 1)
    known, zeros = NOTHING, 0
    yield Distribution(known, elements)
    for known in statistics_so_far(array):
        yield Distribution(known, elements)
    if known.mean is None or known.minimum is None or known.maximum is None:
        return
    quantiles, sampled = _quantiles(array)
    exponent = math.frexp(max(abs(known.minimum), abs(known.maximum)))[1]
    squares = 0.0
    for _, values in real_chunks(array):
        values = values[np.isfinite(values)]
        zeros += int(np.count_nonzero(values == 0))
        apart = np.ldexp(values, -exponent) - math.ldexp(known.mean, -exponent)
        squares += float(np.dot(apart, apart))
        yield Distribution(known, elements, None, zeros, quantiles, sampled)
    std = math.ldexp(math.sqrt(squares / (elements - known.nan - known.inf)), exponent)
    yield Distribution(known, elements, std, zeros, quantiles, sampled)


def _quantiles(array: Array) -> tuple[tuple[float, ...], bool]:
    flat = array.reshape(-1)
    step = -(-flat.size // SAMPLED)
    some = np.concatenate([values for _, values in real_chunks(flat[::step])])
    finite = some[np.isfinite(some)]
    return tuple(_interpolated(np.sort(finite)) if finite.size else ()), step > 1


def _interpolated(ordered: NDArray[np.float64]) -> Iterator[float]:
    """Linear interpolation; both neighbours are scaled before they are added, so that nothing overflows."""
    for share in QUANTILES:
        place = share * (ordered.size - 1)
        low = math.floor(place)
        high = min(low + 1, ordered.size - 1)
        yield float(ordered[low] * (1 - (place - low)) + ordered[high] * (place - low))
