"""The layers of a MAX model: their names, and every call of them while the graph is built.

A layer is named after the path of attributes that leads to it from ``model``; of several paths, the shortest, then the
first. A layer without a path is named after its class and numbered from the second on, as MAX's print hooks do.

MAX has two module systems. Layers of ``max.nn`` are plain classes, each with its own ``__call__``; modules of
``max.experimental.nn`` share one. Both are wrapped while the graph is built: before a layer's own code runs, its
arguments get switches (see ``graph``) and are recorded; after it, its results are recorded.
"""

from __future__ import annotations

import inspect
import sysconfig
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from max.experimental.nn import Module as NewModule
from max.experimental.tensor import Tensor
from max.graph import Graph
from max.nn.layer import Layer, Module

from tensordiff.capture.engines.max import patches
from tensordiff.capture.engines.max.graph import GraphRecord, InstrumentedModel, tensors_in, value_of
from tensordiff.capture.engines.max.shards import LayerShard, ShardPath
from tensordiff.capture.engines.max.sites import GraphSite, ModelInputs, Role, Shard
from tensordiff.capture.process.layers import ROOT
from tensordiff.dump.model import Origin


class Names:
    """The names of layers, by identity.

    Keeps the layers alive, because an id is unique only as long as its object lives.
    """

    def __init__(self) -> None:
        self._names: dict[int, tuple[Any, str]] = {}
        self._shards: dict[int, LayerShard] = {}
        self._unnamed: Counter[str] = Counter()

    def add_tree(self, root: Any) -> None:
        """Name all layers under a root; layers that have a name keep it.

        All shards of a layer get the name of the first.
        """
        found = list(paths(root))
        by_name = {name: layer for layer, name in found}
        for layer, name in found:
            if (shard := layer_shard(name, by_name)) is not None:
                self._shards.setdefault(id(layer), shard)
                where = ShardPath.of(name)
                name = where.first if where is not None else name
            self._names.setdefault(id(layer), (layer, name))

    def shard_of(self, layer: Any) -> LayerShard | None:
        """Which GPU's shard a layer is, if there are several."""
        return self._shards.get(id(layer))

    def of(self, layer: Any) -> str:
        """The layer's name; one without a name gets one now."""
        if (found := self._names.get(id(layer))) is None:
            found = self._names[id(layer)] = (layer, self._by_class(type(layer).__name__))
        return found[1]

    def layers(self) -> dict[str, Any]:
        """Every named layer, by its name."""
        return {name: layer for layer, name in self._names.values()}

    def _by_class(self, name: str) -> str:
        self._unnamed[name] += 1
        return name if self._unnamed[name] == 1 else f"{name}{self._unnamed[name]}"


def layer_shard(name: str, layers: Mapping[str, Any]) -> LayerShard | None:
    """Which shard of which layer a name means.

    ``layers`` are all layers by name; None if it is no shard, or the only one.
    """
    where = ShardPath.of(name)
    if where is None:
        return None
    count = sum(f"{where.path}.{number}" in layers for number in range(_MOST_GPUS))
    if count < 2:
        return None
    top = ShardPath(where.path, where.number, "").whole
    return LayerShard(where.number, count, where.path, *_roles(layers.get(top), layers.get(where.whole), where.rest))


_MOST_GPUS = 64


def _roles(top: Any, whole: Any, rest: str) -> tuple[Role, Role]:
    """How the inputs and outputs of a shard relate to the whole, from MAX's sharding of the sharded layer and of the
    layer within it.
    """
    if patches.is_replicated(top):
        return "copy", "copy"
    split = patches.weight_split(whole)
    if split == "rows":  # of the weights: each GPU has some of the outputs
        return "copy", "columns"
    if split == "columns":
        return "columns", "term"
    if split == "stacked":
        return "copy", "part"
    # A module inside a shard that holds only some heads sees only those heads.
    return ("part", "part") if rest else ("copy", "term")


def paths(root: Any) -> Iterator[tuple[Any, str]]:
    """All layers under a root with their paths, nearest first, each once."""
    if isinstance(root, NewModule):
        yield root, ROOT
        yield from ((module, f"{ROOT}.{path}") for path, module in root.descendants)
    else:
        yield from _walk(root)


def _walk(root: Layer) -> Iterator[tuple[Layer, str]]:
    waiting, seen = deque[tuple[Any, str]]([(root, ROOT)]), set[int]()
    while waiting:
        found, name = waiting.popleft()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, Layer):
            yield found, name
        waiting.extend((child, f"{name}.{key}") for key, child in _children(found))


def _children(found: Any) -> Iterator[tuple[object, Any]]:
    items: Iterable[tuple[object, Any]]
    if isinstance(found, Layer):
        items = _attributes(found)
    else:
        items = found.items() if isinstance(found, dict) else enumerate(found)
    yield from ((key, value) for key, value in items if isinstance(value, Layer | list | tuple | dict))


def _attributes(layer: Layer) -> Iterator[tuple[object, Any]]:
    """The attributes of a layer.

    A private dict is a module's own bookkeeping and would name every layer a second time.
    """
    for key, value in vars(layer).items():
        if not (key.startswith("_") and isinstance(value, dict)):
            yield key, value


class Listener:
    """Records all layers of all graphs that are built while it is installed."""

    def __init__(self) -> None:
        self.names = Names()
        self.records: dict[str, GraphRecord] = {}
        self.instrumented: list[InstrumentedModel] = []
        self.roots: list[Any] = []
        self._calls: Counter[tuple[str, str, int]] = Counter()
        self.active: list[Any] = []
        """The layers whose code is running, outermost first."""

    def install(self, patched: patches.Patches) -> None:
        """Record until the patches are removed."""
        for each in list(patches.layer_classes()):
            patched.put(each, "__call__", self._wrap_call(each.__call__))
        patched.put(NewModule, "__call__", self._wrap_call(NewModule.__call__))
        patched.put(Module, "load_state_dict", self._wrap_loading(Module.load_state_dict))
        patches.on_stage(patched, self.name)
        patches.on_output(patched, self._outputs)
        patches.on_init(patched, self._instrument)

    def _wrap_loading(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def load_state_dict(root: Any, *args: Any, **kwargs: Any) -> Any:
            result = plain(root, *args, **kwargs)
            self.name(root)
            return result

        return load_state_dict

    def name(self, root: Any) -> None:
        """Name the layers under a root."""
        self.names.add_tree(root)
        self.roots.append(root)

    def _wrap_call(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        shape = inspect.signature(plain)

        @wraps(plain)
        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            # A class that calls its base's __call__ is still one call of one layer.
            if (self.active and self.active[-1] is layer) or (record := self._current_record()) is None:
                return plain(layer, *args, **kwargs)
            bound = shape.bind(layer, *args, **kwargs)
            return self._record_call(record, plain, layer, bound.args[1:], bound.kwargs)

        return call

    def _record_call(
        self, record: GraphRecord, plain: Callable[..., Any], layer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        name, shard = self.names.of(layer), self.names.shard_of(layer)
        key = record.graph.name, name, shard.number if shard is not None else 0
        self._calls[key] += 1
        at = LayerCall(record, name, self._calls[key], origin_of(type(layer)), shard)
        return self.trace_call(at, plain, layer, args, kwargs)

    def trace_call(
        self, at: LayerCall, plain: Callable[..., Any], layer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run one call of a layer: switch and record its arguments, run its own code, record its results."""
        self.note_operations(at.record)
        given = [at.switched_input(f"input_{number}", each) for number, each in enumerate(args)]
        named = {key: at.switched_input(f"input_{key}", each) for key, each in kwargs.items()}
        self.skip_operations(at.record)
        self.active.append(layer)
        try:
            result = plain(layer, *given, **named)
            self.note_operations(at.record)
        finally:
            self.active.pop()
        at.record_outputs(result)
        if patches.is_allreduce(layer):
            at.record.note_sum(values_in(args[0]), values_in(result))
        return result

    def inputs(self) -> ModelInputs:
        """The inputs of all layers that can be given from outside, and those that cannot."""
        records = self.records.values()
        return ModelInputs(
            [slot for record in records for slot in record.slots], [each for record in records for each in record.fixed]
        )

    def before_compiling(self, graph: Any) -> None:
        """Called when a graph was built and is about to be compiled."""

    def note_operations(self, record: GraphRecord) -> None:
        """Called when the operations built since the last call belong to the innermost running layer."""

    def skip_operations(self, record: GraphRecord) -> None:
        """Called when the operations built since the last call are tensordiff's own and belong to no layer."""

    def _current_record(self) -> GraphRecord | None:
        try:
            graph = Graph.current
        except LookupError:
            return None
        record = self.records.get(graph.name)
        if record is None:
            record = self.records[graph.name] = GraphRecord.of(graph)
        # The values of a subgraph cannot be reached.
        return record if record.graph is graph else None

    def _outputs(self, graph: Graph, own: Sequence[Any]) -> Sequence[Any]:
        record = self.records.get(graph.name)
        if record is None or record.graph is not graph:
            return own
        return self.outputs(record, own)

    def outputs(self, record: GraphRecord, own: Sequence[Any]) -> Sequence[Any]:
        """The outputs of a graph: those of its model, and the recorded values."""
        record.model_outputs = len(own)
        return [*own, *record.values]

    def _instrument(self, name: str, model: Any) -> Any:
        if (record := self.records.get(name)) is None:
            return model
        self.instrumented.append(InstrumentedModel(model, record))
        return self.instrumented[-1]


class LayerCall:
    """One call of one layer."""

    def __init__(
        self, record: GraphRecord, layer: str, call: int, origin: Origin, shard: LayerShard | None = None
    ) -> None:
        self.record, self.layer, self.call, self._origin, self.shard = record, layer, call, origin, shard

    @property
    def key(self) -> tuple[str, str, int, int]:
        """Identifies the call: graph, layer, shard and number."""
        return self.record.graph.name, self.layer, self.shard.number if self.shard is not None else 0, self.call

    def switched_input(self, port: str, found: Any) -> Any:
        """The argument as the layer is to see it, with a switch for each tensor that can have one."""
        if is_spread(found):
            role: Role = "term" if self._origin.module_class == "Allreduce" else "copy"
            return [self._switched(self._spread(port, k, len(found), role), each) for k, each in enumerate(found)]
        if isinstance(found, list) and any(value_of(each) is not None for each in found):
            ports = [port] if len(found) == 1 else [f"{port}_{number}" for number in range(len(found))]
            return [self.switched_input(name, each) for name, each in zip(ports, found, strict=True)]
        return self._switched(self.site(port), found)

    def _switched(self, site: GraphSite, found: Any) -> Any:
        if (value := value_of(found)) is None:
            self.record.note_fixed(site, found)
            return found
        switched = self.record.switch(site, value)
        self.record.tap(site, switched)
        if switched is value:
            return found
        return Tensor.from_graph_value(switched) if isinstance(found, Tensor) else switched

    def record_outputs(self, result: Any) -> None:
        """Record the layer's results."""
        if is_spread(result):
            for number, value in enumerate(values_in(result)):
                self.record.tap(self._spread("output_0", number, len(result), "copy"), value)
            return
        for port, value in tensors_in("output", result):
            self.record.tap(self.site(port), value)

    def site(self, port: str) -> GraphSite:
        """The site of one of this call's tensors in the graph."""
        shard = None if self.shard is None else self.shard.of_port(port)
        return GraphSite(self.layer, port, self.call, self._origin, shard)

    def _spread(self, port: str, number: int, count: int, role: Role) -> GraphSite:
        return GraphSite(self.layer, port, self.call, self._origin, Shard(number, count, role))


def values_in(found: Any) -> list[Any]:
    """The graph values in a list of tensors."""
    return [value for each in found if (value := value_of(each)) is not None]


def is_spread(found: Any) -> bool:
    """Whether a list holds one tensor on each of several devices."""
    if not isinstance(found, list | tuple) or len(found) < 2 or len(values := values_in(found)) != len(found):
        return False
    kinds = {(value.dtype, tuple(map(str, value.shape))) for value in values}
    return len(kinds) == 1 and len({str(value.device) for value in values}) == len(found)


def origin_of(kind: type[Any]) -> Origin:
    """The class of a layer, and where its code is."""
    call = inspect.unwrap(kind.forward if issubclass(kind, NewModule) else kind.__call__)
    try:
        file, line = inspect.getfile(call), inspect.getsourcelines(call)[1]
    except (OSError, TypeError):
        return Origin(kind.__name__)
    path, packages = Path(file), Path(sysconfig.get_paths()["purelib"])
    shown = path.relative_to(packages).as_posix() if path.is_relative_to(packages) else file
    return Origin(kind.__name__, shown, line)
