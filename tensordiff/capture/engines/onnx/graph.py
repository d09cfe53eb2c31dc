"""A graph to analyse: nodes in execution order, the maker and readers of each value, types and shapes.

A value that only repeats another under a second name (``Identity``, or a ``Cast`` to the type it already has) counts as
that other value. Otherwise, where an exporter merges two equal casts, a norm would seem to return its own input. Types
and shapes are inferred from those of the graph's inputs before anything runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]  # as in model
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, shape_inference
from onnx.helper import tensor_dtype_to_np_dtype

from tensordiff.capture.engines.onnx.model import RANDOM, Model, subgraphs
from tensordiff.dump.dtypes import DType, is_float

_ASKING = ("Shape", "Size")


class Kind(IntEnum):
    """What a value depends on."""

    CONSTANT = 0
    """Only weights and constants."""
    SHAPE = 1
    """Also the shapes of the inputs, but not their values."""
    DATA = 2
    """The values of the inputs."""


class ValueInfo(NamedTuple):
    """What is known of a value before it is computed."""

    dtype: DType | None = None
    shape: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> int | None:
        """The bytes that it will take, if known."""
        if self.dtype is None or self.shape is None:
            return None
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


UNKNOWN = ValueInfo()


@dataclass(frozen=True)
class NodeLinks:
    """Nodes in execution order, and what each of them reads."""

    nodes: tuple[NodeProto, ...]
    reads: tuple[tuple[str, ...], ...]
    """What each node reads, including its inner graphs."""
    maker: Mapping[str, int]
    """The node that makes a value; inputs and weights have none."""

    @classmethod
    def of(cls, nodes: Iterable[NodeProto]) -> NodeLinks:
        """Index a list of nodes."""
        found = tuple(nodes)
        read = tuple(tuple(dict.fromkeys(reads(node))) for node in found)
        return cls(found, read, {name: k for k, node in enumerate(found) for name in node.output if name})

    def needed(self, wanted: Iterable[str]) -> list[NodeProto]:
        """The nodes that must run to compute these values, in order."""
        found: set[int] = set()
        waiting = [self.maker[name] for name in wanted if name in self.maker]
        while waiting:
            if (k := waiting.pop()) not in found:
                found.add(k)
                waiting += [self.maker[name] for name in self.reads[k] if name in self.maker]
        return [self.nodes[k] for k in sorted(found)]


@dataclass(frozen=True)
class Graph:
    """The outermost graph of a model. Values are identified by their first name, see ``same``."""

    links: NodeLinks
    inputs: tuple[str, ...]
    outputs: Mapping[str, str]
    """The output values of the graph, by their output names."""
    same: Mapping[str, str]
    """Second names, and the first name of each."""
    readers: Mapping[str, tuple[int, ...]]
    kinds: Mapping[str, Kind]
    known: Mapping[str, ValueInfo]

    @classmethod
    def of(cls, model: Model, known: Mapping[str, ValueInfo]) -> Graph:
        """Index a model's graph; ``known`` is what is known of its values."""
        links, inputs = NodeLinks.of(model.nodes), tuple(each.name for each in model.inputs)
        same = _second_names(links.nodes, known)
        outputs = {name: same.get(name, name) for name in model.outputs}
        return cls(links, inputs, outputs, same, _readers(links, same), _kinds(links, inputs), known)

    @property
    def nodes(self) -> tuple[NodeProto, ...]:
        """The nodes in execution order."""
        return self.links.nodes

    @property
    def reads(self) -> tuple[tuple[str, ...], ...]:
        """What each node reads, under the names used there."""
        return self.links.reads

    @property
    def maker(self) -> Mapping[str, int]:
        """The node that makes a value."""
        return self.links.maker

    def value(self, name: str) -> str:
        """The first name of a value."""
        return self.same.get(name, name)

    def kind(self, value: str) -> Kind:
        """What a value depends on."""
        return self.kinds.get(value, Kind.CONSTANT)

    def data_reads(self, k: int) -> list[str]:
        """The values whose content a node reads, not only their shape."""
        return [] if self.nodes[k].op_type in _ASKING else [self.value(name) for name in self.reads[k]]

    def info(self, value: str) -> ValueInfo:
        """What is known of a value."""
        return self.known.get(value, UNKNOWN)

    def is_activation(self, value: str) -> bool:
        """Whether a value is worth recording: not a weight, and not a length or index that only describes the layout of
        others.
        """
        kind, known = self.kind(value), self.info(value)
        if kind is not Kind.SHAPE:
            return kind is Kind.DATA
        is_number = known.dtype is None or is_float(known.dtype)
        return is_number or (known.shape is not None and len(known.shape) > 1)


def reads(node: NodeProto) -> Iterator[str]:
    """The values that a node reads, and those that its inner graphs read from outside."""
    yield from filter(None, node.input)
    for inner in subgraphs(node):
        own = {each.name for each in (*inner.input, *inner.initializer)}
        own |= {name for each in inner.node for name in each.output}
        yield from (name for each in inner.node for name in reads(each) if name not in own)


def _second_names(nodes: Iterable[NodeProto], known: Mapping[str, ValueInfo]) -> dict[str, str]:
    same: dict[str, str] = {}
    for node in nodes:
        if _changes_nothing(node, known):
            same[node.output[0]] = same.get(node.input[0], node.input[0])
    return same


def _changes_nothing(node: NodeProto, known: Mapping[str, ValueInfo]) -> bool:
    if node.domain not in ("", "ai.onnx") or node.op_type not in ("Identity", "Cast"):
        return False
    if node.op_type == "Identity":
        return True
    before = known.get(node.input[0], UNKNOWN).dtype
    return before is not None and before == known.get(node.output[0], UNKNOWN).dtype


def _readers(links: NodeLinks, same: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """The nodes that read a value under any name.

    A node that only gives it a second name, or reads its shape, does not count.
    """
    readers: dict[str, list[int]] = defaultdict(list)
    for k, (node, names) in enumerate(zip(links.nodes, links.reads, strict=True)):
        if node.op_type not in _ASKING and not any(name in same for name in node.output):
            for name in dict.fromkeys(same.get(name, name) for name in names):
                readers[name].append(k)
    return {name: tuple(found) for name, found in readers.items()}


def _kinds(links: NodeLinks, inputs: Iterable[str]) -> dict[str, Kind]:
    kinds = dict.fromkeys(inputs, Kind.DATA)
    for node, names in zip(links.nodes, links.reads, strict=True):
        kind = max((kinds.get(name, Kind.CONSTANT) for name in names), default=Kind.CONSTANT)
        if node.op_type in _ASKING:
            kind = min(kind, Kind.SHAPE)
        elif node.op_type in RANDOM:
            kind = Kind.DATA
        kinds.update((name, kind) for name in node.output if name)
    return kinds


_SMALL = 1024  # elements of a weight that shape inference may need to read


def infer(model: Model, given: Mapping[str, tuple[int, ...]]) -> dict[str, ValueInfo]:
    """Infer types and shapes of all values from the inputs' shapes, as far as possible."""
    light = _without_weights(model)
    for each in light.graph.input:
        _set_shape(each, given[each.name])
    try:
        found = shape_inference.infer_shapes(light, data_prop=True)
    except (shape_inference.InferenceError, DecodeError, EncodeError, ValueError, RuntimeError):
        found = light  # less is known then; a run will measure it
    told = (*found.graph.input, *found.graph.value_info)
    weights = {each.name: ValueInfo(_dtype(each.data_type), tuple(each.dims)) for each in model.weights}
    return weights | {each.name: _known(each) for each in told}


def _without_weights(model: Model) -> ModelProto:
    """A copy that has only the names and shapes of large weights."""
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


def _known(about: ValueInfoProto) -> ValueInfo:
    if not about.type.HasField("tensor_type"):
        return UNKNOWN
    tensor = about.type.tensor_type
    return ValueInfo(_dtype(tensor.elem_type), _shape(tensor))


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
