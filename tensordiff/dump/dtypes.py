"""The element types we read, each under one name.

numpy has no bfloat16 and no 8-bit floats; ml_dtypes registers them as real numpy dtypes, so a tensor is an ordinary
``ndarray`` everywhere in tensordiff, whatever its dtype. Every reader maps its own codes to the names used here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
DType = np.dtype[Any]

_ML = (
    "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn",
)  # fmt: skip
_NUMPY = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip

DTYPES: dict[str, DType] = {name: np.dtype(name) for name in _NUMPY} | {
    name: np.dtype(getattr(ml_dtypes, name)) for name in _ML
}


@lru_cache(maxsize=256)
def name_of(dtype: DType) -> str:
    """The name of a dtype.

    Cached, since numpy builds it anew each time, which is noticeable at 20,000 pairs a second.
    """
    return dtype.name


def has_zero(dtype: DType) -> bool:
    """Whether a dtype can represent zero; one that holds only powers of two cannot."""
    return name_of(dtype) != "float8_e8m0fnu"


def is_float(dtype: DType) -> bool:
    """Whether values are rounded: floats of any width, including complex ones."""
    return dtype.kind in "fc" or dtype.name in _ML


def is_integral(dtype: DType) -> bool:
    """Whether values are integers or booleans."""
    return dtype.kind in "iub"


def is_real_float(dtype: DType) -> bool:
    """Whether values are floats of any width, but not complex."""
    return dtype.kind != "c" and is_float(dtype)
