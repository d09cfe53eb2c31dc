"""An ONNX file, read without its weights: those in files beside it are not read until onnxruntime maps them.

A model may come from a stranger. Every other file that it names must be in its own folder, after links are followed. A
hub's cache, where model and weights are both links into one folder of blobs, counts as that folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # onnx brings it without types
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.helper import make_attribute

from tensordiff.errors import CaptureError, first_line, printable

RANDOM = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
"""Operators that draw random numbers, optionally from a given seed. Dropout draws none outside of training."""


class Model(NamedTuple):
    """A model whose functions are inlined, without its nodes: weights are large, and many sessions are made
    with them.
    """

    rest: ModelProto
    """Everything but the graph's nodes, inputs and outputs."""
    nodes: tuple[NodeProto, ...]
    inputs: tuple[ValueInfoProto, ...]
    """The inputs that the graph must be given, without its weights."""
    outputs: tuple[str, ...]
    path: Path
    folder: Path
    """The folder of weights that are in files of their own."""

    @property
    def weights(self) -> Sequence[TensorProto]:
        """The weights in the graph that are not sparse."""
        found: Sequence[TensorProto] = self.rest.graph.initializer
        return found

    @property
    def weight_names(self) -> set[str]:
        """The names of all weights in the graph."""
        graph = self.rest.graph
        return {each.name for each in graph.initializer} | {each.values.name for each in graph.sparse_initializer}

    def serialize(self, nodes: Iterable[NodeProto], inputs: Iterable[ValueInfoProto], outputs: Iterable[str]) -> bytes:
        """Serialize a model with these weights and other nodes. Concatenated protobuf messages are read as one."""
        more = ModelProto()
        more.graph.node.extend(nodes)
        more.graph.input.extend(inputs)
        more.graph.output.extend(ValueInfoProto(name=name) for name in outputs)
        return bytes(self.rest.SerializeToString() + more.SerializeToString())


def load(target: str) -> Model:
    """Read a model; raises ``CaptureError`` if there is none, or if it refers to files outside of its folder."""
    path = Path(target).expanduser().absolute()
    if not path.is_file():
        raise CaptureError(f"onnx:{printable(target)}: is no file that onnxruntime could run; write onnx:FILE.onnx")
    proto = _read(path)
    folder = _locate_weights(path, list(tensors(proto.graph)))
    return _split(_inlined(proto, path) if proto.functions else proto, path, folder)


def seed(model: Model, number: int) -> None:
    """Give every node that draws random numbers a seed of its own, so that it draws the same however the
    graph is cut.
    """
    for k, node in enumerate(model.nodes):
        if node.op_type in RANDOM and not any(each.name == "seed" for each in node.attribute):
            node.attribute.append(make_attribute("seed", float(number + k)))


def _split(proto: ModelProto, path: Path, folder: Path) -> Model:
    graph = proto.graph
    weights = {each.name for each in graph.initializer} | {each.values.name for each in graph.sparse_initializer}
    nodes, outputs = tuple(graph.node), tuple(each.name for each in graph.output)
    inputs = tuple(each for each in graph.input if each.name not in weights)
    for name in ("node", "input", "output"):
        graph.ClearField(name)
    return Model(proto, nodes, inputs, outputs, path, folder)


def _read(path: Path) -> ModelProto:
    try:
        proto = onnx.load(path, format="protobuf", load_external_data=False)
    except (DecodeError, OSError, ValueError) as error:
        raise CaptureError(f"{printable(path)}: is no ONNX model ({printable(error)!s:.200})") from error
    if not proto.graph.node:
        raise CaptureError(f"{printable(path)}: is no ONNX model, or one without a node; write onnx:FILE.onnx")
    return proto


def _inlined(proto: ModelProto, path: Path) -> ModelProto:
    """Replace calls of the model's functions by their nodes, so that values within them can be read."""
    from onnx.inliner import inline_local_functions

    try:
        return inline_local_functions(proto)
    except Exception as error:  # a C++ exception of any kind
        reason = first_line(error)
        raise CaptureError(f"{printable(path)}: its functions cannot be inlined ({reason:.200})") from error


# --- weights in files of their own


def tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Every tensor in a graph, including those in attributes of nodes and in inner graphs."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
        for inner in subgraphs(node):
            yield from tensors(inner)


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs in a node: branches, bodies of loops."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def is_outside(tensor: TensorProto) -> bool:
    """Whether a tensor's bytes are in another file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def external(tensor: TensorProto) -> dict[str, Any]:
    """Where its bytes are: ``location``, ``offset``, ``length``."""
    return {item.key: item.value for item in tensor.external_data}


def _locate_weights(path: Path, found: list[TensorProto]) -> Path:
    """Find the one folder that contains all external tensors, and make their locations relative to it."""
    outside = [tensor for tensor in found if is_outside(tensor)]
    homes = (path.parent.resolve(), path.resolve().parent)
    places = {str(external(tensor).get("location", "")) for tensor in outside}
    real = {place: _resolved(path, place) for place in places}
    home = next((home for home in homes if all(file.is_relative_to(home) for file in real.values())), None)
    if home is None:
        raise CaptureError(
            f"{printable(path)}: names weights outside of its folder "
            f"({printable(_first_away(real, homes[0]))}); such a file is not opened"
        )
    for tensor in outside:
        for item in tensor.external_data:
            if item.key == "location":
                item.value = real[item.value].relative_to(home).as_posix()
    return home


def _resolved(path: Path, place: str) -> Path:
    """The file of a location, links followed; it must exist, and be given relative to the model's folder."""
    if not place or Path(place).is_absolute():
        raise CaptureError(f"{printable(path)}: names weights outside of its folder ({printable(place)})")
    file = path.parent / place
    found = file.resolve()
    if not found.is_file() and found.is_relative_to(path.parent.resolve()):
        raise CaptureError(f"{printable(file)}: is not there, and {printable(path.name)} has its weights in it")
    return found


def _first_away(real: dict[str, Path], home: Path) -> str:
    return next((place for place, file in real.items() if not file.is_relative_to(home)), "")
