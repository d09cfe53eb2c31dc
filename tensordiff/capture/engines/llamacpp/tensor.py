"""A tensor of a llama.cpp graph, as far as is known of it without its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import ml_dtypes
import numpy as np

from tensordiff.dump.dtypes import DType

F32, F16 = 0, 1

DTYPES: Mapping[int, DType] = {
    F32: np.dtype(np.float32), F16: np.dtype(np.float16), 24: np.dtype(np.int8), 25: np.dtype(np.int16),
    26: np.dtype(np.int32), 27: np.dtype(np.int64), 28: np.dtype(np.float64), 30: np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip
"""The types of ggml that are arrays as they are; the others are quantized."""


class Tensor(NamedTuple):
    """A tensor of a graph, at its address."""

    address: int
    name: str
    op: str
    """``MUL_MAT``, ``RMS_NORM``; ``NONE`` of weights, inputs and caches."""
    kind: int
    """Its type, as ggml numbers them."""
    shape: tuple[int, ...]
    """The slowest dimension first, without leading ones of more than two: ``(tokens, features)``."""
    strides: tuple[int, ...]
    nbytes: int
    sources: tuple[int, ...]
    """The addresses of what it is made of."""
    view_of: int | None
    """The address of the tensor in whose memory it lies, where it has none of its own."""
    is_swapped: bool = False
    """Of a gated activation whose gate and up are one tensor: whether up comes first."""
