"""One layer alone: a graph of just that layer, its weights, and the inputs of a reference.

The model's own code is traced twice. The first time, only the types of each layer's results are recorded. The second
time, every layer that neither contains the wanted one nor is inside it returns a placeholder of that type instead of
running, and the graph's outputs are those of the wanted layer; the compiler drops the rest. Arguments that are not
tensors (a cache, offsets, frequencies) reach the layer as in the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from max.experimental.tensor import Tensor
from max.graph import TensorType

from tensordiff.capture.engines.max.graph import GraphRecord, value_of
from tensordiff.capture.engines.max.layers import LayerCall, Listener
from tensordiff.capture.engines.max.model import CompiledModel
from tensordiff.capture.engines.max.ops import is_within
from tensordiff.capture.engines.max.pipeline import ModelOptions
from tensordiff.capture.events import Tell
from tensordiff.capture.process.layers import find_layer
from tensordiff.errors import CaptureError, printable

Call = tuple[str, str, int, int]
"""Graph, layer, shard and number of a call."""


class TracingDone(Exception):
    """Everything was traced; nothing is to be compiled."""


class TypeListener(Listener):
    """Traces a model and records the types of its layers' results."""

    def __init__(self) -> None:
        super().__init__()
        self.output_types: dict[Call, Any] = {}

    def trace_call(
        self, at: LayerCall, plain: Callable[..., Any], layer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Record the types of a call's result."""
        result = super().trace_call(at, plain, layer, args, kwargs)
        self.output_types[at.key] = outline(at.record, result)
        return result

    def before_compiling(self, graph: Any) -> None:
        """Stop where the model's own graph would be compiled."""
        if getattr(graph, "name", None) in self.records:
            raise TracingDone


class SingleLayerListener(Listener):
    """Builds the graph of one layer."""

    def __init__(self, name: str, types: TypeListener) -> None:
        super().__init__()
        self._types, self.layer = types, find_layer(name, types.names.layers())

    def trace_call(
        self, at: LayerCall, plain: Callable[..., Any], layer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run the wanted layer and what is in it; run the layers around it unrecorded; replace all others by
        placeholders.
        """
        if is_within(at.layer, self.layer):
            return super().trace_call(at, plain, layer, args, kwargs)
        given = self._types.output_types.get(at.key, MISSING)
        if is_within(self.layer, at.layer) or given is MISSING:
            return self._run_unrecorded(plain, layer, args, kwargs)
        return placeholder(at.record, at, given)

    def _run_unrecorded(
        self, plain: Callable[..., Any], layer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        self.active.append(layer)
        try:
            return plain(layer, *args, **kwargs)
        finally:
            self.active.pop()

    def outputs(self, record: GraphRecord, own: Sequence[Any]) -> Sequence[Any]:
        """The recorded values only."""
        record.model_outputs = 0
        return record.values if record.values else own


def single_layer_model(options: ModelOptions, name: str, tell: Tell) -> CompiledModel:
    """A model, not yet entered, that runs one layer and nothing else."""
    types = TypeListener()
    try:
        with CompiledModel(options, tell, types):
            raise CaptureError(f"{printable(options.folder)}: MAX built no graph with layers in it")
    except TracingDone:
        return CompiledModel(options, tell, SingleLayerListener(name, types))


MISSING = object()


def outline(record: GraphRecord, result: Any) -> Any:
    """A result with types in place of values; ``MISSING`` if a placeholder cannot replace it."""
    if (value := value_of(result)) is not None:
        if not record.has_declared_shape(value):
            return MISSING
        kind = TensorType(value.dtype, value.shape, value.device)
        return (Tensor, kind) if isinstance(result, Tensor) else kind
    if result is None:
        return None
    if isinstance(result, list | tuple):
        parts = [outline(record, each) for each in result]
        return MISSING if any(each is MISSING for each in parts) else type(result)(parts)
    return MISSING


def placeholder(record: GraphRecord, at: LayerCall, given: Any) -> Any:
    """Graph inputs with the types of an outline."""
    if isinstance(given, TensorType):
        return record.placeholder_input(at.site("output"), given)
    if isinstance(given, tuple) and len(given) == 2 and given[0] is Tensor:
        return Tensor.from_graph_value(record.placeholder_input(at.site("output"), given[1]))
    if isinstance(given, list | tuple):
        return type(given)(placeholder(record, at, each) for each in given)
    return given
