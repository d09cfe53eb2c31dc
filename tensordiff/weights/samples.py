"""Small samples of parameters, and whether two hold the same values as far as their dtypes can tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tensordiff.dump.dtypes import name_of
from tensordiff.dump.model import StoredTensor
from tensordiff.errors import AlignError, DumpError
from tensordiff.weights.packed import quantization_of
from tensordiff.weights.quantization import Quantization
from tensordiff.weights.views import read_rows

Floats = NDArray[np.float32]

_ROWS, _COLUMNS = 32, 256
_SLACK = {"float64": 1e-6, "float32": 1e-6, "float16": 2e-3, "bfloat16": 8e-3}
_SLACK_FLOAT8 = 0.08
_SLACK_BITS = {8: 0.03, 6: 0.06, 5: 0.1, 4: 0.2, 3: 0.35, 2: 0.6}
_OF_SPREAD = 0.5  # an error this large relative to the standard deviation means other values
_FEW = 256  # values that represent a sample in the index
_ROUGHLY = 4.0
"""How much larger the error of a few values may be than that of a whole sample."""
_MOST_ALIKE = 64  # if more samples may be alike, values prove nothing
_AT_ONCE = 1 << 20


def sample(stored: StoredTensor) -> Floats:
    """Some columns of some rows spread over a tensor, as [rows, columns]; infinities and NaN become 0."""
    shape = stored.spec.shape
    if len(shape) < 2:
        return as_floats(stored.read().reshape(-1)[: _ROWS * _COLUMNS])[None, :]
    places = np.unique(np.linspace(0, shape[0] - 1, min(_ROWS, shape[0])).astype(int)).tolist()
    rows = [as_floats(read_rows(stored, k, k + 1).reshape(-1)[:_COLUMNS]) for k in places]
    return np.stack(rows) if rows else np.zeros((0, 0), np.float32)


def sample_or_none(stored: StoredTensor) -> Floats | None:
    """A sample; None if it cannot be read, which measuring reports."""
    try:
        return sample(stored)
    except (DumpError, AlignError):
        return None


def as_floats(values: NDArray[np.generic]) -> Floats:
    """Values as finite float32."""
    with np.errstate(all="ignore"):
        wide = values.astype(np.float32)
    return np.nan_to_num(wide, copy=False, nan=0.0, posinf=0.0, neginf=0.0)


def slack_of(*sides: StoredTensor) -> float:
    """The relative error that the coarsest of some tensors explains."""
    return max(_slack(side, quantization_of(side)) for side in sides)


def _slack(side: StoredTensor, quantization: Quantization | None) -> float:
    if quantization is not None and quantization.bits:
        return slack_of_bits(quantization.bits)
    if quantization is not None:
        return _SLACK_FLOAT8
    name = name_of(side.spec.dtype)
    return _SLACK_FLOAT8 if name.startswith(("float8", "float4", "float6")) else _SLACK.get(name, 1e-6)


def slack_of_bits(bits: float) -> float:
    """The relative error that so few bits explain."""
    return _SLACK_BITS.get(int(bits), 0.2)


def are_alike(one: Floats, other: Floats, slack: float) -> bool:
    """Whether two samples are the same values, and values that others would not have by chance."""
    if one.shape != other.shape or one.size < 4:
        return False
    error = size = spread = 0.0
    mean = float(other.mean(dtype=np.float64))
    for a, b in wide_blocks(one, other):
        error += float(np.sum((a - b) ** 2))
        size += float(np.sum(b**2))
        spread += float(np.sum((b - mean) ** 2))
    return size > 0 and error <= slack**2 * size and error <= _OF_SPREAD**2 * spread


def wide_blocks(*tables: Floats) -> Iterator[tuple[NDArray[np.float64], ...]]:
    """Tables of one shape in float64, some rows at a time: a whole one would take twice its memory."""
    count = max(1, _AT_ONCE * len(tables[0]) // max(1, tables[0].size))
    for start in range(0, len(tables[0]), count):
        yield tuple(table[start : start + count].astype(np.float64) for table in tables)


def is_telling(values: Floats) -> bool:
    """Whether values can prove an identity: they must vary, unlike those of a fresh norm."""
    return values.size >= 8 and float(values.std()) > 1e-4 * float(np.abs(values).max(initial=0.0))


class SampleIndex:
    """Samples of one shape, to find those that may equal a given one without trying each."""

    def __init__(self, samples: Sequence[Floats | None], slack: float) -> None:
        """``slack`` is the relative error that the coarsest dtype of the samples explains."""
        self._slack = slack
        width = max((_few(one).size for one in samples if one is not None), default=0)
        self._rows = np.array([np.full(width, np.nan) if one is None else _few(one) for one in samples])
        self._rows = self._rows.reshape(len(samples), width)
        self._squares = np.einsum("ij,ij->i", self._rows, self._rows)

    def near(self, wanted: Floats, slack: float) -> list[int]:
        """Positions of samples that may equal one with this slack; empty if so many may that values prove nothing."""
        values, slack = _few(wanted), max(slack, self._slack)
        if values.size != self._rows.shape[1]:
            return []
        square = float(values @ values)
        with np.errstate(all="ignore"):
            apart = self._squares + square - 2 * (self._rows @ values)
            room = ((_ROUGHLY * slack) ** 2 + 1e-9) * np.maximum(self._squares, square)
            found = np.flatnonzero(apart <= room).tolist()
        return found if len(found) <= _MOST_ALIKE else []


def _few(values: Floats) -> NDArray[np.float64]:
    """Some values spread over a sample, which represent it."""
    flat = values.reshape(-1)
    return flat[:: max(1, flat.size // _FEW)][: _FEW + 1].astype(np.float64)
