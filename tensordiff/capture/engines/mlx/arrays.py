"""Converts arrays of MLX to numpy's and back, and finds them in the arguments and results of a module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np

from tensordiff.dump.dtypes import Array

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def to_numpy(array: mx.array) -> Array:
    """A copy, computed now: MLX is lazy and may reuse the memory for another array later."""
    mx.eval(array)
    if array.dtype == mx.bfloat16:
        return np.array(array.view(mx.uint16)).view(_BFLOAT16)
    return np.array(array)


def to_mlx(array: Array) -> mx.array:
    """An MLX array with the same values and type."""
    if array.dtype == _BFLOAT16:
        return mx.array(np.ascontiguousarray(array).view(np.uint16)).view(mx.bfloat16)
    return mx.array(array)


def find_arrays(value: Any, port: str) -> Iterator[tuple[str, mx.array]]:
    """The arrays in a module's arguments or result, by port: ``output``, or ``output_1`` in a tuple."""
    if isinstance(value, mx.array):
        yield port, value
    elif isinstance(value, tuple | list):
        for number, one in enumerate(value):
            yield from find_arrays(one, f"{port}_{number}")
    elif isinstance(value, Mapping) and not hasattr(value, "parameters"):  # a module of MLX is a mapping too
        for key, one in value.items():
            yield from find_arrays(one, f"{port}_{key}")


def replace_arrays(value: Any, port: str, new: Mapping[str, mx.array]) -> Any:
    """The same value, with other arrays at some ports."""
    if isinstance(value, mx.array):
        return new.get(port, value)
    if isinstance(value, tuple | list):
        replaced = [replace_arrays(one, f"{port}_{number}", new) for number, one in enumerate(value)]
        return type(value)(*replaced) if hasattr(value, "_fields") else type(value)(replaced)
    if isinstance(value, Mapping) and not hasattr(value, "parameters"):
        return {key: replace_arrays(one, f"{port}_{key}", new) for key, one in value.items()}
    return value
