"""A graph for looking at: nodes in execution order, the maker and readers of each value, types and shapes.

A value that is another under a second name (``Identity``, a ``Cast`` to the type it has) is taken for that other: an
exporter that finds two equal casts keeps one, and a norm would seem to give away what it was given. Types and shapes
are inferred from those of the graph's inputs before anything runs.
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
    """What a value follows from."""

    CONSTANT = 0
    """Weights and constants alone."""
    SHAPE = 1
    """The shapes of the inputs, whatever is in them."""
    DATA = 2
    """What is in the inputs."""


class ValueInfo(NamedTuple):
    """What is known of a value before it is computed."""

    dtype: DType | None = None
    shape: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> int | None:
        """Bytes that it will take."""
        if self.dtype is None or self.shape is None:
            return None
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


UNKNOWN = ValueInfo()


@dataclass(frozen=True)
class NodeLinks:
    """Nodes in execution order, and which reads what."""

    nodes: tuple[NodeProto, ...]
    reads: tuple[tuple[str, ...], ...]
    """What each node reads, its inner graphs included."""
    maker: Mapping[str, int]
    """The node that makes a value; none makes inputs and weights."""

    @classmethod
    def of(cls, nodes: Iterable[NodeProto]) -> NodeLinks:
        """Look at nodes."""
        found = tuple(nodes)
        read = tuple(tuple(dict.fromkeys(reads(node))) for node in found)
        return cls(found, read, {name: k for k, node in enumerate(found) for name in node.output if name})

    def needed(self, wanted: Iterable[str]) -> list[NodeProto]:
        """The nodes that must run for these values, in order."""
        found: set[int] = set()
        waiting = [self.maker[name] for name in wanted if name in self.maker]
        while waiting:
            if (k := waiting.pop()) not in found:
                found.add(k)
                waiting += [self.maker[name] for name in self.reads[k] if name in self.maker]
        return [self.nodes[k] for k in sorted(found)]


@dataclass(frozen=True)
class Graph:
    """The outermost graph of a model. Values are meant by their first name, see ``same``."""

    links: NodeLinks
    inputs: tuple[str, ...]
    outputs: Mapping[str, str]
    """The values that the graph gives, by the name it gives them under."""
    same: Mapping[str, str]
    """Second names, and the value each is."""
    readers: Mapping[str, tuple[int, ...]]
    kinds: Mapping[str, Kind]
    known: Mapping[str, ValueInfo]

    @classmethod
    def of(cls, model: Model, known: Mapping[str, ValueInfo]) -> Graph:
        """Read a model's graph; ``known`` is what could be told of its values."""
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
        """What each node reads, as it is called there."""
        return self.links.reads

    @property
    def maker(self) -> Mapping[str, int]:
        """The node that makes a value."""
        return self.links.maker

    def value(self, name: str) -> str:
        """A value by its first name."""
        return self.same.get(name, name)

    def kind(self, value: str) -> Kind:
        """What a value follows from."""
        return self.kinds.get(value, Kind.CONSTANT)

    def data_reads(self, k: int) -> list[str]:
        """The values that a node reads for what is in them."""
        return [] if self.nodes[k].op_type in _ASKING else [self.value(name) for name in self.reads[k]]

    def info(self, value: str) -> ValueInfo:
        """What is known of a value."""
        return self.known.get(value, UNKNOWN)

    def is_activation(self, value: str) -> bool:
        """Whether a value is worth a look: no weight, and no length or index that only says how others are laid out."""
        kind, known = self.kind(value), self.info(value)
        if kind is not Kind.SHAPE:
            return kind is Kind.DATA
        is_number = known.dtype is None or is_float(known.dtype)
        return is_number or (known.shape is not None and len(known.shape) > 1)


def reads(node: NodeProto) -> Iterator[str]:
    """The values that a node reads, and its inner graphs read from outside of them."""
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
    """Who reads a value, under any name; who only gives it a second name, or asks for its shape, does not read it."""
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


_SMALL = 1024  # elements of a weight that shape inference may want to read


def infer(model: Model, given: Mapping[str, tuple[int, ...]]) -> dict[str, ValueInfo]:
    """Types and shapes of all values, as far as they can be told from the inputs' shapes."""
    light = _without_weights(model)
    for each in light.graph.input:
        _set_shape(each, given[each.name])
    try:
        found = shape_inference.infer_shapes(light, data_prop=True)
    except (shape_inference.InferenceError, DecodeError, EncodeError, ValueError, RuntimeError):
        found = light  # less is known then, and a run will tell
    told = (*found.graph.input, *found.graph.value_info)
    weights = {each.name: ValueInfo(_dtype(each.data_type), tuple(each.dims)) for each in model.weights}
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
