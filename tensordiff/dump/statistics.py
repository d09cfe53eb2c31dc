"""Dumps that hold statistics of tensors instead of values: mean, standard deviation, smallest and largest.

Each tensor is a short vector of its statistics, and a dump of values that it is compared with is viewed through the
same statistics (``as_statistics``). Equal statistics prove nothing about values, so no comparison with such a dump says
``agrees`` (``session.doubts``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tensordiff.dump.dtypes import DTYPES, Array, DType
from tensordiff.dump.model import Dump, Entry, Spec, StoredTensor

NAMES = ("mean", "std", "rms", "min", "max")
_EDGE = 3
SAMPLE = "sample"
"""Takes the place of statistics: at most three values at both ends of each axis, as llama.cpp prints them."""


class StatisticsTensor(NamedTuple):
    """The statistics of a tensor that was not dumped itself."""

    values: Mapping[str, float]
    names: tuple[str, ...]
    dtype: DType

    @property
    def spec(self) -> Spec:
        """The spec of the vector."""
        return Spec((len(self.names),), self.dtype)

    def read(self) -> Array:
        """The vector, in the order of the names."""
        array = np.array([self.values[name] for name in self.names]).astype(self.dtype)
        array.flags.writeable = False
        return array


class SampleTensor(NamedTuple):
    """The printed values of a tensor."""

    values: Array

    @property
    def spec(self) -> Spec:
        """The spec of the printed values."""
        return Spec(self.values.shape, self.values.dtype)

    def read(self) -> Array:
        """The printed values."""
        return self.values


@dataclass(frozen=True)
class SummaryTensor:
    """The statistics of a tensor whose values are available."""

    of: StoredTensor
    names: tuple[str, ...]
    dtype: DType

    @property
    def spec(self) -> Spec:
        """The spec of the vector; the shape of a sample follows from the tensor's."""
        if self.names == (SAMPLE,):
            return Spec(tuple(min(n, 2 * _EDGE) for n in _stripped(self.of.spec.shape)), self.dtype)
        return Spec((len(self.names),), self.dtype)

    def read(self) -> Array:
        """The statistics, computed from all values."""
        values = self.of.read()
        result = sample(values) if self.names == (SAMPLE,) else np.array(_summary(values, self.names))
        result = result.astype(self.dtype)
        result.flags.writeable = False
        return result


def _stripped(shape: tuple[int, ...]) -> tuple[int, ...]:
    while shape and shape[0] == 1:
        shape = shape[1:]
    return shape


def sample(values: Array) -> Array:
    """At most three values at both ends of each axis, without leading axes of size 1."""
    values = values.reshape(_stripped(values.shape))
    for axis, length in enumerate(values.shape):
        if length > 2 * _EDGE:
            values = np.take(values, [*range(_EDGE), *range(length - _EDGE, length)], axis)
    return values


def _summary(values: Array, names: tuple[str, ...]) -> list[float]:
    flat = values.reshape(-1).astype(np.float64)
    if flat.size == 0:
        return [0.0] * len(names)
    with np.errstate(all="ignore"):
        known = {
            "mean": flat.mean(),
            "std": flat.std(ddof=1) if flat.size > 1 else 0.0,  # as torch does
            "rms": np.sqrt(np.mean(flat * flat)),
            "min": flat.min(),
            "max": flat.max(),
        }
    return [float(known[name]) for name in names]


def as_statistics(dump: Dump, names: tuple[str, ...], coarse: DType = DTYPES["float32"]) -> Dump:
    """A dump viewed through these statistics. It must hold all of them, or values."""

    def summarized(item: Entry) -> StoredTensor:
        if isinstance(item.stored, StatisticsTensor):
            return item.stored._replace(names=names)
        return item.stored if isinstance(item.stored, SampleTensor) else SummaryTensor(item.stored, names, coarse)

    entries = tuple(e._replace(stored=summarized(e)) for e in dump.entries)
    return replace(dump, entries=entries, statistics=names, is_summarized=dump.is_summarized or not dump.statistics)


def common_statistics(one: Dump, other: Dump) -> tuple[Dump, Dump]:
    """Two dumps viewed through the statistics that both have; unchanged if both hold values."""
    if not one.statistics and not other.statistics:
        return one, other
    if one.statistics and other.statistics:
        names = tuple(name for name in one.statistics if name in other.statistics)
        return (as_statistics(one, names), as_statistics(other, names)) if names else (one, other)
    names = one.statistics or other.statistics
    return as_statistics(one, names), as_statistics(other, names)
