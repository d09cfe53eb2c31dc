"""What can be told of a graph's values before anything runs: types and shapes, from those of its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]  # as in model
from onnx import ModelProto, TensorProto, ValueInfoProto, shape_inference
from onnx.helper import tensor_dtype_to_np_dtype

from tensordiff.capture.children.onnx_engine.graph import UNKNOWN, Known
from tensordiff.capture.children.onnx_engine.model import Model
from tensordiff.dump.dtypes import DType

_SMALL = 1024  # elements of a weight that shape inference may want to read


def infer(model: Model, given: Mapping[str, tuple[int, ...]]) -> dict[str, Known]:
    """Types and shapes of all values, as far as they can be told from the inputs' shapes."""
    light = _without_weights(model)
    for each in light.graph.input:
        _set_shape(each, given[each.name])
    try:
        found = shape_inference.infer_shapes(light, data_prop=True)
    except (shape_inference.InferenceError, DecodeError, EncodeError, ValueError, RuntimeError):
        found = light  # less is known then, and a run will tell
    told = (*found.graph.input, *found.graph.value_info)
    weights = {each.name: Known(_dtype(each.data_type), tuple(each.dims)) for each in model.weights}
    return weights | {each.name: _known(each) for each in told}


def _without_weights(model: Model) -> ModelProto:
    """A copy whose large weights are names and shapes."""
    light = ModelProto(ir_version=model.rest.ir_version, opset_import=model.rest.opset_import)
    light.graph.name = "light"
    light.graph.node.extend(model.nodes)
    light.graph.input.extend(model.inputs)
    light.graph.initializer.extend(map(_outline, model.weights))
    return light


def _outline(tensor: TensorProto) -> TensorProto:
    if np.prod(tensor.dims, dtype=np.float64) <= _SMALL and tensor.data_location != TensorProto.EXTERNAL:
        return tensor
    return TensorProto(
        name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, data_location=TensorProto.EXTERNAL
    )


def _set_shape(about: ValueInfoProto, shape: tuple[int, ...]) -> None:
    dims = about.type.tensor_type.shape.dim
    del dims[:]
    for length in shape:
        dims.add().dim_value = length


def _known(about: ValueInfoProto) -> Known:
    if not about.type.HasField("tensor_type"):
        return UNKNOWN
    tensor = about.type.tensor_type
    return Known(_dtype(tensor.elem_type), _shape(tensor))


def _shape(tensor: Any) -> tuple[int, ...] | None:
    if not tensor.HasField("shape") or not all(each.HasField("dim_value") for each in tensor.shape.dim):
        return None
    return tuple(each.dim_value for each in tensor.shape.dim)


def _dtype(number: int) -> DType | None:
    try:
        found: DType = tensor_dtype_to_np_dtype(number)
    except KeyError:
        return None
    return found
