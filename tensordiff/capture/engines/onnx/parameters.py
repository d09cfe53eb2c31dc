"""The parameters of a graph: the floats it brings along, in the file or beside it.

Integers among a graph's initializers are shapes, axes and indices, and a single number is a constant of some
operation; neither is a parameter of the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from onnx import TensorProto, numpy_helper

from tensordiff.capture.engines.onnx.model import Model
from tensordiff.capture.process.output import Output
from tensordiff.dump.dtypes import DTYPES, name_of
from tensordiff.dump.model import EntryKey, Origin
from tensordiff.dump.names import parameter_name

_BYTES = {
    TensorProto.FLOAT: 4, TensorProto.FLOAT16: 2, TensorProto.BFLOAT16: 2, TensorProto.DOUBLE: 8,
    TensorProto.FLOAT8E4M3FN: 1, TensorProto.FLOAT8E5M2: 1,
}  # fmt: skip


def _parameters(model: Model) -> Iterator[TensorProto]:
    return (each for each in model.weights if each.data_type in _BYTES and math.prod(each.dims) > 1)


def parameter_bytes(model: Model) -> int:
    """How much all of them take."""
    return sum(math.prod(each.dims) * _BYTES[each.data_type] for each in _parameters(model))


def write_parameters(model: Model, output: Output) -> None:
    """Write all of them, one after the other."""
    for each in _parameters(model):
        array = numpy_helper.to_array(each, str(model.folder))
        if name_of(array.dtype) in DTYPES:
            output.add_parameter(EntryKey(parameter_name(each.name), 0, 1), array, Origin())
        else:
            output.budget.leave_out(f"its type {array.dtype} is not written")
