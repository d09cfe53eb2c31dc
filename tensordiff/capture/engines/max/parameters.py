"""The weights that MAX's graphs were given: what its own loading, renaming and splitting made of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from max.driver import Buffer

from tensordiff.capture.engines.max.buffers import from_buffer
from tensordiff.capture.process.output import Output
from tensordiff.dump.dtypes import DTYPES, Array
from tensordiff.dump.model import EntryKey, Origin
from tensordiff.dump.names import parameter_name


def write_parameters(weights: Mapping[str, Any], output: Output) -> None:
    """Write all of them, one after the other."""
    for name, value in weights.items():
        array = _array(value)
        if array is None:
            output.budget.leave_out("its type is not written")
        else:
            output.add_parameter(EntryKey(parameter_name(name), 0, 1), array, Origin())


def _array(value: Any) -> Array | None:
    """The values of what MAX calls a DLPack array: a buffer, numpy's, or another library's."""
    if isinstance(value, np.ndarray):
        return value if value.dtype.name in DTYPES else None
    buffer = value if isinstance(value, Buffer) else Buffer.from_dlpack(value)
    return from_buffer(buffer) if buffer.dtype.name in DTYPES else None
