"""Statistics of one tensor, in float64 and in parts: what ``inspect`` shows of an entry."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

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


def statistics(array: Array) -> Statistics:
    """Read a tensor once."""
    low, high, total, squares, count, nan, inf = math.inf, -math.inf, 0.0, 0.0, 0, 0, 0
    flat = array.reshape(-1)
    for begin in range(0, flat.size, _PART):
        part = flat[begin : begin + _PART].astype(np.complex128 if array.dtype.kind == "c" else np.float64)
        part = part.view(np.float64)
        nan += int(np.count_nonzero(np.isnan(part)))
        inf += int(np.count_nonzero(np.isinf(part)))
        part = part[np.isfinite(part)]
        if part.size:
            low, high = min(low, float(part.min())), max(high, float(part.max()))
            with np.errstate(over="ignore"):
                total, squares = total + float(part.sum()), squares + float(np.dot(part, part))
            count += part.size
    if not count:
        return Statistics(None, None, None, None, nan, inf)
    return Statistics(low, high, total / count, math.sqrt(squares / count), nan, inf)
