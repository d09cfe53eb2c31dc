"""Runs a graph with onnxruntime: computes any of its values for the same inputs, as often as needed.

A session is made of the nodes that the requested values need. Those values are its outputs, and nothing is optimized,
since fused nodes have no values of their own. onnxruntime holds every output of a session until the run is over, so
large requests are split, with a session for each part. The execution providers for ``--device`` are chosen here:
``auto`` is cuda if this onnxruntime has it, else the cpu. The cpu always comes last, for operators without a kernel in
the other provider.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from onnx import NodeProto, TensorProto, TypeProto, ValueInfoProto, helper

from tensordiff.capture.devices import parse_device
from tensordiff.capture.engines.onnx.failures import FAILURES, failure_from
from tensordiff.capture.engines.onnx.graph import Graph, NodeLinks, ValueInfo, reads
from tensordiff.capture.engines.onnx.model import Model
from tensordiff.dump.dtypes import DTYPES, Array, DType
from tensordiff.errors import CaptureError, printable

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


class Placement(NamedTuple):
    """The execution providers, in order of preference."""

    device: str
    """As ``--device`` would name it: ``cpu``, ``cuda:0``."""
    providers: tuple[tuple[str, Mapping[str, str]], ...]
    is_optional: bool = False
    """Whether the CPU will do instead, because the user did not ask for this provider."""


def placement(text: str, available: Sequence[str], *, exact: bool = False) -> Placement:
    """The providers for a value of ``--device``, out of the available ones; ``exact`` rules out TF32."""
    choice = parse_device(text)
    cpu: tuple[str, Mapping[str, str]] = (CPU, {})
    if choice.kind == "cpu" or (choice.kind == "auto" and CUDA not in available):
        return Placement("cpu", (cpu,))
    if choice.kind in ("mps", "map") or len(choice.numbers) > 1:
        raise CaptureError(
            f"--device {printable(text)}: onnxruntime is run on the cpu or one GPU with CUDA; give auto, cpu or gpu:1"
        )
    if CUDA not in available:
        there = ", ".join(name.removesuffix("ExecutionProvider") for name in available) or "nothing"
        raise CaptureError(
            f"--device {printable(text)}: this onnxruntime has no CUDA (it has {printable(there)}); "
            "install onnxruntime-gpu, or try --device cpu"
        )
    number = str(choice.number)
    options = {"device_id": number} | ({"use_tf32": "0"} if exact else {})
    return Placement(f"cuda:{number}", ((CUDA, options), cpu), is_optional=text == "auto")


def active_placement(placed: Placement, active: Sequence[str]) -> Placement:
    """The placement that took effect: onnxruntime continues without a provider that does not start."""
    first = placed.providers[0][0]
    if first in active:
        return placed
    if not placed.is_optional:
        raise CaptureError(
            f"--device {placed.device}: onnxruntime could not start {first}; are its libraries and driver there? "
            "Try --device cpu"
        )
    return Placement("cpu", ((CPU, {}),))


_OPTIMIZED = "session.optimized_model_external_initializers"
_FOLDER = "session.model_external_initializers_file_folder_path"


class Feed(NamedTuple):
    """A value that is given instead of computed."""

    array: Array
    elem_type: int


@dataclass
class GraphRunner:
    """A model with its inputs, ready to compute values."""

    model: Model
    graph: Graph
    feeds: Mapping[str, Feed]
    placed: Placement
    deterministic: bool = False
    runs: int = 0
    """How often the graph, or part of it, was run."""

    def values(
        self, wanted: Iterable[str], links: NodeLinks | None = None, more: Mapping[str, Feed] | None = None
    ) -> dict[str, Array | str]:
        """Compute values by name. For a value that cannot be had, returns the reason instead.

        ``links`` are other nodes than the graph's; ``more`` is what they read besides its inputs.
        """
        feeds = {**self.feeds, **(more or {})}
        names = list(dict.fromkeys(wanted))
        given: dict[str, Array | str] = {name: feeds[name].array for name in names if name in feeds}
        made = [name for name in names if name not in feeds]
        if not made:
            return given
        nodes = (links or self.graph.links).needed(made)
        session = self._session(nodes, made, _read_of(more or {}, nodes))
        return given | dict(zip(made, map(as_array, self._run(session, made, feeds)), strict=True))

    def shapes(self, wanted: Sequence[str]) -> dict[str, ValueInfo]:
        """Types and shapes of values, by a run that keeps none of them."""
        chosen = self.graph.links.needed(wanted)
        types = self._types_of(chosen, wanted)
        tensors = [name for name in wanted if types[name] is not None]
        if not tensors:
            return {}
        asking = [helper.make_node("Shape", [name], [f"tensordiff shape {n}"]) for n, name in enumerate(tensors)]
        names = [node.output[0] for node in asking]
        found = self._run(self._session([*chosen, *asking], names), names, self.feeds)
        lengths = [tuple(int(length) for length in each.numpy()) for each in found]
        return {name: ValueInfo(types[name], shape) for name, shape in zip(tensors, lengths, strict=True)}

    def _types_of(self, nodes: Sequence[NodeProto], wanted: Sequence[str]) -> dict[str, DType | None]:
        """The types of values according to onnxruntime: only it can infer the results of its own operators."""
        types = {name: self.graph.info(name).dtype for name in wanted}
        unknown = [name for name, dtype in types.items() if dtype is None]
        if not unknown:
            return types
        session = self._session(nodes, unknown)
        return types | {each.name: _dtype_said(each.type) for each in session.get_outputs()}

    def _run(self, session: Any, names: Sequence[str], feeds: Mapping[str, Feed]) -> list[Any]:
        self.runs += 1
        given = {each.name: to_value(feeds[each.name]) for each in session.get_inputs()}
        with self._translated_errors():
            found: list[Any] = session.run_with_ort_values(list(names), given)
            return found

    def _session(
        self, nodes: Sequence[NodeProto], outputs: Sequence[str], more: Mapping[str, Feed] | None = None
    ) -> Any:
        options = self._options()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        inputs = (*self.model.inputs, *(_declared(name, feed) for name, feed in (more or {}).items()))
        return self._start(self.model.serialize(nodes, inputs, outputs), options)

    def optimize(self, path: Path) -> None:
        """Write the graph as onnxruntime optimizes it, with its weights in a file beside it."""
        options = self._options()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(path)
        options.add_session_config_entry(f"{_OPTIMIZED}_file_name", f"{path.name}.weights")
        options.add_session_config_entry(f"{_OPTIMIZED}_min_size_in_bytes", "1024")
        self._start(self.model.serialize(self.model.nodes, self.model.inputs, self.model.outputs), options)

    def _options(self) -> Any:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.enable_mem_reuse = (
            False  # planning is quadratic in the number of nodes, and saves nothing because every value is an output
        )
        options.use_deterministic_compute = self.deterministic
        options.add_session_config_entry(_FOLDER, str(self.model.folder))
        return options

    def _start(self, spelled: bytes, options: Any) -> Any:
        providers = [(name, dict(said)) for name, said in self.placed.providers]
        with self._translated_errors():
            session = onnxruntime.InferenceSession(spelled, options, providers=providers)
        self.placed = active_placement(self.placed, session.get_providers())
        return session

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Turn errors of onnxruntime into one sentence."""
        try:
            yield
        except FAILURES as error:
            raise failure_from(str(error), self.model) from error


def _read_of(more: Mapping[str, Feed], nodes: Sequence[NodeProto]) -> dict[str, Feed]:
    """The feeds that these nodes read."""
    names = {name for node in nodes for name in reads(node)} if more else ()
    return {name: feed for name, feed in more.items() if name in names}


def _declared(name: str, feed: Feed) -> ValueInfoProto:
    return ValueInfoProto(name=name, type=TypeProto(tensor_type=TypeProto.Tensor(elem_type=feed.elem_type)))


# --- values in and out


def to_value(feed: Feed) -> Any:
    """An array as onnxruntime takes it, including types that numpy lacks."""
    array = np.asarray(feed.array, order="C")
    if array.dtype.isbuiltin == 1:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    bits = array.view(np.int16 if array.itemsize == 2 else np.uint8)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, feed.elem_type)


def as_array(value: Any) -> Array | str:
    """A value of onnxruntime as an array, including types that numpy lacks; or why it is not one."""
    if not value.has_value() or not value.is_tensor():
        return f"it is no tensor but a {printable(value.data_type())}"
    dtype = _dtype_of(value.element_type())
    if dtype is None:
        return f"its type {printable(value.data_type())} is not written"
    if dtype.isbuiltin == 1:
        found: Array = value.numpy()
        return found
    # numpy has no such type, so the bytes are copied and given the type.
    nbytes = value.tensor_size_in_bytes()
    raw = ctypes.string_at(value.data_ptr(), nbytes) if nbytes else b""
    return np.frombuffer(bytearray(raw), dtype).reshape(value.shape())


def _dtype_of(number: int) -> DType | None:
    """A type that dumps have; types with several elements a byte are not written."""
    if number in _PACKED or number == TensorProto.STRING:
        return None
    dtype = helper.tensor_dtype_to_np_dtype(number)
    return dtype if dtype.name in DTYPES else None


_PACKED = {
    getattr(TensorProto, name)
    for name in ("INT2", "UINT2", "INT4", "UINT4", "FLOAT4E2M1", "FLOAT6E2M3", "FLOAT6E3M2")
    if hasattr(TensorProto, name)
}
_SAID = {"float": "FLOAT", "double": "DOUBLE", **{name.lower(): name for name, _ in TensorProto.DataType.items()}}


def _dtype_said(text: str) -> DType | None:
    """Parse a type such as ``tensor(float)``."""
    name = _SAID.get(text.removeprefix("tensor(").removesuffix(")"))
    return None if name is None else _dtype_of(TensorProto.DataType.Value(name))
