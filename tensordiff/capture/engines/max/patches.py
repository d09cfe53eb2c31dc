"""All access to MAX's private interfaces.

The rest of this folder uses MAX's internals only through these functions, so that only this file must be checked for a
new version of MAX. ``Patches`` replaces attributes of MAX and restores them when its block ends, however it ends.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from typing import Any

from max.dtype import DType
from max.engine import InferenceSession
from max.experimental import compilation
from max.experimental.nn import Module as NewModule
from max.graph import Graph, TensorType, TensorValue, Value, ops
from max.graph.graph import Block, _location, _Value
from max.nn.comm.allreduce import Allreduce, Signals
from max.nn.layer import Layer, Module
from max.nn.stacked_linear import StackedLinear
from max.pipelines import PIPELINE_REGISTRY
from max.pipelines.modeling import config_enums

from tensordiff.errors import CaptureError

KNOWN = ("26.7",)
"""Versions of MAX (major.minor) with which all of this was tested."""
_LOG_PROBABILITIES = "ragged_logprobs"


def version() -> str:
    """The installed version of MAX."""
    return importlib.metadata.version("max")


def check_version() -> None:
    """Refuse a version of MAX whose internals are unknown, before it crashes."""
    found = version()
    if found.rsplit(".", 1)[0] not in KNOWN:
        known = ", ".join(f"{one}.*" for one in KNOWN)
        raise CaptureError(f"MAX {found} is not a version that can be captured from; install one of {known}")


class Patches(ExitStack):
    """Replacements that last as long as the ``with`` block."""

    def put(self, owner: Any, name: str, new: Any) -> Any:
        """Set an attribute; returns its previous value."""
        missing = object()
        held = vars(owner).get(name, missing)
        old = getattr(owner, name, None)
        self.callback(lambda: delattr(owner, name) if held is missing else setattr(owner, name, held))
        setattr(owner, name, new)
        return old

    def put_item(self, table: MutableMapping[Any, Any], key: Any, new: Any) -> None:
        """Set an entry of a table."""
        old = table[key]
        self.callback(table.__setitem__, key, old)
        table[key] = new

    def put_member(self, members: set[Any], new: Any) -> None:
        """Add a member to a set that lacks it."""
        if new not in members:
            self.callback(members.discard, new)
            members.add(new)


def add_input(graph: Graph, kind: TensorType) -> TensorValue:
    """Add an input to a graph that is being built. The inputs that the model knows keep their places."""
    _ = graph.inputs  # computed once and cached: the model keeps seeing only its own
    with _location() as place:
        Block._from_cmlir(graph._graph_body).add_argument(kind.to_mlir(), place)
    return Value.from_mlir(_Value._from_cmlir(graph._graph_body.arguments[-1])).tensor


def refresh_inputs(graph: Graph) -> None:
    """Make ``Graph.output`` name all inputs: the compiler crashes if there are fewer names than inputs."""
    graph.__dict__.pop("inputs", None)


def is_top_level(graph: Graph) -> bool:
    """Whether operations are now added to the graph itself, not to a branch or the body of a loop."""
    return bool(graph._current_block == graph._graph_body)


def has_dimension(graph: Graph, name: str) -> bool:
    """Whether a symbolic dimension is one of the graph's inputs'."""
    return name in graph._params


def value_key(value: TensorValue) -> object:
    """A key that is equal for two handles of the same value."""
    return value._mlir_value


def depends_on_inputs(value: TensorValue, known: dict[object, bool]) -> bool:
    """Whether a value depends on the inputs of the run. Weights and tables of frequencies do not."""
    waiting = [value._mlir_value]
    while waiting:
        one = waiting[-1]
        if one in known:
            waiting.pop()
            continue
        owner = one.owner
        operands = None if isinstance(owner, Block) else [getattr(each, "value", each) for each in owner.operands]
        if operands is not None and (unknown := [each for each in operands if each not in known]):
            waiting.extend(unknown)
            continue
        known[one] = operands is None or any(known[each] for each in operands)
        waiting.pop()
    return known[value._mlir_value]


def operations_after(graph: Graph, last: Any) -> list[Any]:
    """The operations of a graph after ``last``, in order; all of them if ``last`` is None."""
    found: list[Any] = []
    for each in reversed(list(graph._graph_body.operations)):
        if last is not None and each == last:
            break
        found.append(each)
    return found[::-1]


def operation_name(operation: Any) -> str:
    """The name of an operation: ``matmul`` for ``rmo.matmul``; the kernel's name for a custom operation."""
    name = str(operation.operation.name)
    if name == "mo.custom" and "symbol" in operation.attributes:
        return str(operation.attributes["symbol"]).strip('"')
    return name.removeprefix("rmo.").removeprefix("mo.")


def results_of(operation: Any) -> list[TensorValue]:
    """The tensors that an operation returns."""
    found = (Value.from_mlir(_Value._from_cmlir(each)) for each in operation.results)
    return [each for each in found if isinstance(each, TensorValue)]


def on_output(patches: Patches, outputs: Callable[[Graph, Sequence[Any]], Sequence[Any]]) -> None:
    """Let ``outputs`` change the outputs of a finished graph."""
    plain = Graph.output

    def output(self: Graph, *own: Any) -> None:
        given = outputs(self, own)
        refresh_inputs(self)
        plain(self, *given)

    patches.put(Graph, "output", output)


def on_stage(patches: Patches, before: Callable[[Any], None]) -> None:
    """Call ``before`` with a module of the new system before it is traced, and keep its layers from sharing one traced
    body.
    """
    plain = compilation.stage

    def stage(function: Any, **kwargs: Any) -> Any:
        if not isinstance(function, NewModule):
            return plain(function, **kwargs)
        before(function)
        return plain(function, **{**kwargs, "allow_subgraphs": False})

    patches.put(compilation, "stage", stage)


def on_init(patches: Patches, wrap: Callable[[str, Any], Any]) -> None:
    """Wrap compiled graphs when they are handed out; all models pass through this function."""
    plain = InferenceSession.init_all

    def init_all(self: InferenceSession, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {name: wrap(name, model) for name, model in plain(self, *args, **kwargs).items()}

    patches.put(InferenceSession, "init_all", init_all)


def on_weights(patches: Patches, keep: Callable[[Mapping[str, Any]], None]) -> None:
    """Call ``keep`` with the weights that graphs are given, as MAX's own loading made them."""
    plain = InferenceSession.init_all

    def init_all(self: InferenceSession, *args: Any, **kwargs: Any) -> dict[str, Any]:
        found = kwargs.get("weights_registry") or next((each for each in args[1:] if isinstance(each, Mapping)), None)
        keep(found or {})
        models: dict[str, Any] = plain(self, *args, **kwargs)
        return models

    patches.put(InferenceSession, "init_all", init_all)


def on_compile(patches: Patches, before: Callable[[Any], None]) -> None:
    """Call ``before`` before a compilation begins."""
    plain = InferenceSession.compile_reusing_mefs

    def compile_reusing_mefs(self: InferenceSession, model: Any, **kwargs: Any) -> Any:
        before(model)
        return plain(self, model, **kwargs)

    patches.put(InferenceSession, "compile_reusing_mefs", compile_reusing_mefs)


def layer_classes() -> Iterator[type[Layer]]:
    """Every class of layers that has a ``__call__`` of its own."""
    waiting, seen = [Layer], set[type[Layer]]()
    while waiting:
        for each in waiting.pop().__subclasses__():
            if each not in seen:
                seen.add(each)
                waiting.append(each)
                if "__call__" in each.__dict__:
                    yield each


def is_replicated(layer: Any) -> bool:
    """Whether each device has the whole layer."""
    strategy = _strategy(layer)
    return strategy is not None and bool(strategy.is_replicate)


def weight_split(layer: Any) -> str | None:
    """Whether the rows or the columns of a layer's weights are sharded; None if neither, or unknown.

    ``stacked`` means the rows of several matrices in one: a device has some of each.
    """
    strategy = _strategy(layer)
    if strategy is None:
        return None
    if isinstance(layer, StackedLinear) or strategy.is_stacked_qkv:
        return "stacked"
    if strategy.is_rowwise:
        return "rows"
    return "columns" if strategy.is_colwise or strategy.is_head_aware_colwise else None


def _strategy(layer: Any) -> Any:
    try:
        return getattr(layer, "sharding_strategy", None)
    except (AttributeError, NotImplementedError):
        return None


def is_allreduce(layer: Any) -> bool:
    """Whether a layer adds up the values of several devices."""
    return isinstance(layer, Allreduce)


def allow_encoding(patches: Patches, encoding: str) -> None:
    """Lift the configuration's ban of an encoding on the CPU, for which kernels exist."""
    patches.put_item(config_enums._SUPPORTED_DEVICES, encoding, ("cpu", "gpu"))
    for architecture in PIPELINE_REGISTRY.all_architectures():
        patches.put_member(architecture.supported_encodings, encoding)


def without_log_probabilities(patches: Patches) -> None:
    """Skip compiling the log probabilities that a server returns besides tokens: a capture does not need them."""
    plain = InferenceSession.load

    def load(self: InferenceSession, model: Any, **kwargs: Any) -> Any:
        return None if getattr(model, "name", None) == _LOG_PROBABILITIES else plain(self, model, **kwargs)

    patches.put(InferenceSession, "load", load)


def ignore_extra_weights(patches: Patches) -> None:
    """Let a model ignore weights of its checkpoint that it has no layer for, as with fewer layers."""
    plain = Module.load_state_dict

    def load_state_dict(self: Module, state_dict: Mapping[str, Any], **kwargs: Any) -> Any:
        wanted = self.raw_state_dict()
        return plain(self, {name: value for name, value in state_dict.items() if name in wanted}, **kwargs)

    patches.put(Module, "load_state_dict", load_state_dict)


def collectives_on_cpu(patches: Patches) -> None:
    """Let models written for several devices run on one CPU: a sum over one device is its only term."""
    patches.put(Signals, "NUM_BYTES", 1024)
    patches.put(Signals, "_init_lamport_region", staticmethod(lambda _: None))
    patches.put(Signals, "__init__", _signals_of_any_device)
    patches.put(Allreduce, "__init__", _allreduce_of_no_accelerators)
    patches.put(ops.allreduce, "sum", _sum_of_one(ops.allreduce.sum))
    patches.put(ops, "distributed_broadcast", _broadcast_to_one(ops.distributed_broadcast))


def _signals_of_any_device(self: Signals, devices: Iterable[Any]) -> None:
    self.devices = list(devices)


def _allreduce_of_no_accelerators(self: Allreduce, num_accelerators: int) -> None:  # noqa: ARG001
    super(Allreduce, self).__init__()
    self.devices = []


def _sum_of_one(plain: Callable[..., Any]) -> Callable[..., Any]:
    def sum_of(inputs: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        given = list(inputs)
        return given if len(given) == 1 else plain(given, *args, **kwargs)

    return sum_of


def _broadcast_to_one(plain: Callable[..., Any]) -> Callable[..., Any]:
    def broadcast(value: Any, signals: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        given = list(signals)
        return [value] if len(given) == 1 else plain(value, given, *args, **kwargs)

    return broadcast


class _Float32Instead:
    """Replaces ``DType`` in modules that wrote ``DType.bfloat16`` and meant "the model's type"."""

    bfloat16 = DType.float32

    def __getattr__(self, name: str) -> Any:
        return getattr(DType, name)


def norms_in_float32(patches: Patches, package: str) -> None:
    """Let an architecture run in float32 whose norms are hard-coded as bfloat16 (Gemma 3)."""
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{package}.") and getattr(module, "DType", None) is DType:
            patches.put(module, "DType", _Float32Instead())
