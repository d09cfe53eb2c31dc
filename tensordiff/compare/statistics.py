"""Statistics of one tensor, in float64 and in parts: what ``inspect`` shows of an entry."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensordiff.dump.dtypes import Array

_PART = 1 << 18


@dataclass(frozen=True)
class Statistics:
    """Of the finite elements; None where there is none."""

    minimum: float | None
    maximum: float | None
    mean: float | None
    rms: float | None
    nan: int
    inf: int

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


class _Sums:
    """Sum and sum of squares, held as multiples of a power of two: neither overflows, neither vanishes."""

    def __init__(self) -> None:
        self.count, self.exponent, self.total, self.squares = 0, -(1 << 12), 0.0, 0.0

    def add(self, values: NDArray[np.float64]) -> None:
        """Take in some finite values."""
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
    """Read a tensor once. Real and imaginary parts of complex numbers count each by itself."""
    sums, ends, nan, inf = _Sums(), list[float](), 0, 0
    flat = array.reshape(-1)
    for begin in range(0, flat.size, _PART):
        part = flat[begin : begin + _PART]
        values = part.astype(np.complex128 if array.dtype.kind == "c" else np.float64).view(np.float64)
        nan += int(np.count_nonzero(np.isnan(values)))
        inf += int(np.count_nonzero(np.isinf(values)))
        values = values[np.isfinite(values)]
        if values.size:
            sums.add(values)
            ends += _ends(part, values)
    if not sums.count:
        return Statistics(None, None, None, None, nan, inf)
    return Statistics(min(ends), max(ends), sums.mean, sums.rms, nan, inf)


def _ends(part: Array, values: NDArray[np.float64]) -> list[float]:
    """The least and the largest. Integers past 2^53 are told as they are, not as the nearest float."""
    of: Array = part if part.dtype.kind in "iu" else values
    return [of.min().item(), of.max().item()]
