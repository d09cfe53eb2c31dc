"""MAX's buffers as numpy arrays and back, bit for bit in every type that tensordiff knows; and writing MAX's weights.

numpy lacks some of MAX's types, and MAX fails on 0-d booleans: those are passed as unsigned integers of the same width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from max.driver import CPU, Buffer
from max.dtype import DType

from tensordiff.capture.process.output import Output
from tensordiff.dump.dtypes import DTYPES, Array
from tensordiff.dump.model import EntryKey, Origin
from tensordiff.dump.names import parameter_name

_PLAIN = (
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64",
)  # fmt: skip
_BITS = {1: DType.uint8, 2: DType.uint16}


def from_buffer(buffer: Buffer) -> Array:
    """The buffer's values, in memory of their own."""
    host, kind = buffer.to(CPU()), DTYPES[buffer.dtype.name]
    if kind.name in _PLAIN:
        return np.array(host.to_numpy())
    shape = tuple(map(int, host.shape))
    return np.array(host.view(_BITS[kind.itemsize], shape).to_numpy()).view(kind)


def to_buffer(values: Array | None, shape: tuple[int, ...], dtype: DType, device: Any) -> Buffer:
    """A buffer of this shape and type on a device; filled with zeros if there are no values."""
    kind = DTYPES[dtype.name]
    array = np.zeros(shape, kind) if values is None else np.array(values, kind, order="C").reshape(shape)
    if kind.name in _PLAIN:
        return Buffer.from_numpy(array).to(device.to_device())
    bits = Buffer.from_numpy(array.view(f"u{kind.itemsize}"))
    return bits.view(dtype, shape).to(device.to_device())


def write_parameters(weights: Mapping[str, Any], output: Output) -> None:
    """Write the weights that MAX's graphs were given: a checkpoint after MAX's loading, renaming and splitting."""
    for name, value in weights.items():
        array = _array(value)
        if array is None:
            output.budget.leave_out("its type is not written")
        else:
            output.add_parameter(EntryKey(parameter_name(name), 0, 1), array, Origin())


def _array(value: Any) -> Array | None:
    """The values of a DLPack array, as MAX calls it: MAX's buffer, numpy's array, or another library's."""
    if isinstance(value, np.ndarray):
        return value if value.dtype.name in DTYPES else None
    buffer = value if isinstance(value, Buffer) else Buffer.from_dlpack(value)
    return from_buffer(buffer) if buffer.dtype.name in DTYPES else None
