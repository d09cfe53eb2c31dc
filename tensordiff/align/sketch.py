"""A few numbers that tell a tensor from others without reading it again.

Its size, mean, RMS and largest value do not change when it is transposed or its heads are permuted;
a short sample of its first values tells sums and products of tensors apart before any is computed
whole. Tensors that would match anything (constant, tiny, not finite) have no sketch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.dump.dtypes import Array, name_of
from tensordiff.dump.model import Entry
from tensordiff.errors import AlignError, DumpError

SAMPLE = 64
SMALLEST = 16
_PART = 1 << 20
# How far two runs of the same layer may stand apart (rel_l2) and still be told from other layers.
_SAME = {"float64": 1e-7, "float32": 1e-5, "float16": 5e-3, "bfloat16": 3e-2}


class Sketch(NamedTuple):
    """What is remembered of a tensor."""

    entry: Entry
    core: tuple[int, ...]
    """The shape without dimensions of size 1."""
    size: int
    mean: float
    rms: float
    largest: float
    sample: NDArray[np.float64]
    same: float
    """The rel_l2 up to which another tensor may be the same as this."""

    @property
    def width(self) -> int:
        """The last dimension."""
        return self.core[-1] if self.core else 1


def sketch(entry: Entry) -> Sketch | None:
    """Read a tensor once; None where its values tell nothing."""
    try:
        array = entry.read()
    except (DumpError, AlignError):
        return None  # measuring will say why
    is_whole = array.dtype.kind in "iu" and entry.is_input  # token ids tell one layer from another
    if array.size < (2 if is_whole else SMALLEST) or not (is_whole or name_of(array.dtype) in _SAME):
        return None
    return _of_values(entry, array)


def _of_values(entry: Entry, array: Array) -> Sketch | None:
    flat, total, squares, largest = array.reshape(-1), 0.0, 0.0, 0.0
    with np.errstate(all="ignore"):
        for begin in range(0, flat.size, _PART):
            part = flat[begin : begin + _PART].astype(np.float64)
            total += float(part.sum())
            squares += float(np.dot(part, part))
            largest = max(largest, float(np.abs(part).max()))
    mean, rms = total / flat.size, math.sqrt(squares / flat.size) if squares < math.inf else math.inf
    if not 0 < rms < math.inf or not math.isfinite(mean) or rms * rms - mean * mean < 1e-12 * rms * rms:
        return None
    core = tuple(size for size in array.shape if size != 1)
    sample = flat[:SAMPLE].astype(np.float64)
    return Sketch(entry, core, flat.size, mean, rms, largest, sample, _SAME.get(name_of(array.dtype), 0.0))
