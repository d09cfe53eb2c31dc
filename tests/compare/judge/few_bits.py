"""Tensors that are a little off, and tensors in few bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tensordiff.dump.dtypes import Array
from tests.making import numbers


def off(x: Array, error: float, seed: int = 1) -> Array:
    """A tensor of which each element is off by about this share of itself."""
    return np.asarray(x * (1 + error * numbers(*x.shape, seed=seed)))


def short(tensors: dict[str, Array]) -> dict[str, Array]:
    """The same in bfloat16, integers as they are."""
    return {n: v if v.dtype.kind in "iu" else v.astype(ml_dtypes.bfloat16) for n, v in tensors.items()}
