"""How one tensor's values are spread: beside its ``Statistics`` the standard deviation, zeros and quantiles.

Everything but the quantiles of a large tensor is of all its elements; those are of a sample taken evenly, and say so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.statistics import NOTHING, Statistics, real_parts, statistics_so_far
from tensordiff.dump.dtypes import Array

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
SAMPLED = 1 << 21
"""Elements that quantiles are taken of; of a tensor with more, so many at even distances."""


class Spread(NamedTuple):
    """Of the finite elements; None where there is none, or where it is not known yet."""

    statistics: Statistics
    elements: int
    """Reals: a complex number counts as two."""
    std: float | None = None
    zeros: int = 0
    quantiles: tuple[float, ...] = ()
    sampled: bool = False
    """Whether the quantiles are of a sample."""


def spread(array: Array) -> Iterator[Spread]:
    """Read a tensor twice. What is yielded is of all that was read so far; the last is whole."""
    elements = array.size * (2 if array.dtype.kind == "c" else 1)
    found, zeros = NOTHING, 0
    yield Spread(found, elements)
    for found in statistics_so_far(array):
        yield Spread(found, elements)
    if found.mean is None or found.minimum is None or found.maximum is None:
        return
    quantiles, sampled = _quantiles(array)
    exponent = math.frexp(max(abs(found.minimum), abs(found.maximum)))[1]
    squares = 0.0
    for _, values in real_parts(array):
        values = values[np.isfinite(values)]
        zeros += int(np.count_nonzero(values == 0))
        apart = np.ldexp(values, -exponent) - math.ldexp(found.mean, -exponent)
        squares += float(np.dot(apart, apart))
        yield Spread(found, elements, None, zeros, quantiles, sampled)
    std = math.ldexp(math.sqrt(squares / (elements - found.nan - found.inf)), exponent)
    yield Spread(found, elements, std, zeros, quantiles, sampled)


def _quantiles(array: Array) -> tuple[tuple[float, ...], bool]:
    flat = array.reshape(-1)
    step = -(-flat.size // SAMPLED)
    some = np.concatenate([values for _, values in real_parts(flat[::step])])
    finite = some[np.isfinite(some)]
    return tuple(_interpolated(np.sort(finite)) if finite.size else ()), step > 1


def _interpolated(ordered: NDArray[np.float64]) -> Iterator[float]:
    """Between neighbours by their distance; each is scaled before the two are added, so that none overflows."""
    for share in QUANTILES:
        place = share * (ordered.size - 1)
        low = math.floor(place)
        high = min(low + 1, ordered.size - 1)
        yield float(ordered[low] * (1 - (place - low)) + ordered[high] * (place - low))
