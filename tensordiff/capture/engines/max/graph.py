"""Instruments a MAX graph: extra outputs for values inside it, extra inputs to replace values there.

While MAX builds a model's graph, the inputs and outputs of every layer become additional outputs of the graph
(``Tap``), and every input that depends on the run's inputs gets a switch (``InputSlot``): ``where(flag, given, own)``.
A switch that is off changes nothing, so one compilation serves the plain run and every injected one. Values inside a
branch, a loop or a subgraph cannot be reached from outside and are not recorded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from max.driver import Buffer
from max.dtype import DType
from max.experimental.tensor import Tensor
from max.graph import BufferValue, Graph, StaticDim, SymbolicDim, TensorType, TensorValue, ops

from tensordiff.capture.engines.max import patches
from tensordiff.capture.engines.max.buffers import from_buffer, to_buffer
from tensordiff.capture.engines.max.sites import FixedInput, GraphSite, InputSlot, SiteValues
from tensordiff.dump.dtypes import Array


@dataclass(frozen=True)
class Tap:
    """A recorded value of the graph: where it is in the model, and which of the extra outputs it is."""

    site: GraphSite
    output: int
    is_number: bool = False
    """Whether it is a single constant number, such as the number of a layer."""


@dataclass
class GraphRecord:
    """What was noted about one graph while it was built."""

    graph: Graph
    kinds: tuple[Any, ...]
    """The types of the inputs that the model itself declared."""
    taps: list[Tap] = field(default_factory=list)
    slots: list[InputSlot] = field(default_factory=list)
    fixed: list[FixedInput] = field(default_factory=list)
    model_outputs: int = 0
    values: list[TensorValue] = field(default_factory=list)
    sums: dict[object, int] = field(default_factory=dict)
    """For each term that the GPUs add up, which of the extra outputs is the sum."""
    _positions: dict[object, int] = field(default_factory=dict)
    _first: dict[object, GraphSite] = field(default_factory=dict)
    _live: dict[object, bool] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph) -> GraphRecord:
        """A record for a graph whose model has not been called yet."""
        return cls(graph, tuple(value.type for value in graph.inputs))

    def tap(self, site: GraphSite, value: TensorValue) -> None:
        """Record a value.

        A value that was recorded before is output once, under both names; a constant keeps one name.
        """
        if not patches.is_top_level(self.graph):
            return
        key = patches.value_key(value)
        if key not in self._positions:
            self._positions[key] = len(self.values)
            self._first[key] = site
            self.values.append(value)
        elif not self.depends_on_inputs(value):
            return
        is_number = not value.shape and not self.depends_on_inputs(value)
        self.taps.append(Tap(site, self._positions[key], is_number))

    def note_sum(self, terms: Sequence[TensorValue], results: Sequence[TensorValue]) -> None:
        """Note that GPUs add up terms, and the result, which was recorded already."""
        if results and (position := self._positions.get(patches.value_key(results[0]))) is not None:
            self.sums |= {patches.value_key(term): position for term in terms}

    def merged_tap(self, tap: Tap) -> tuple[GraphSite, int]:
        """The site and output of a tap. For a term, these are the sum that the GPUs themselves computed."""
        shard = tap.site.shard
        if shard is None or shard.role != "term":
            return tap.site, tap.output
        position = self.sums.get(patches.value_key(self.values[tap.output]))
        if position is None:
            return tap.site, tap.output
        return dataclasses.replace(tap.site, shard=dataclasses.replace(shard, role="copy")), position

    def placeholder_input(self, site: GraphSite, kind: TensorType) -> TensorValue:
        """An input in place of a value that is not computed. It is fed zeros, because nothing depends on its value."""
        self.slots.append(InputSlot(site, kind.dtype, tuple(map(_size, kind.shape)), kind.device, has_flag=False))
        return patches.add_input(self.graph, kind)

    def has_declared_shape(self, value: TensorValue) -> bool:
        """Whether the shape is known from the graph's inputs."""
        return all(_is_known(self.graph, size) for size in value.shape)

    def switch(self, site: GraphSite, value: TensorValue) -> TensorValue:
        """The value, or what is given for its site when the graph is run."""
        if why := self._obstacle(value) or _obstacle_of(site):
            self.fixed.append(FixedInput(site, why, is_constant=not self.depends_on_inputs(value)))
            return value
        given = patches.add_input(self.graph, TensorType(value.dtype, value.shape, value.device))
        flag = patches.add_input(self.graph, TensorType(DType.bool, (), value.device))
        shape = tuple(map(_size, value.shape))
        self.slots.append(InputSlot(site, value.dtype, shape, value.device, self._first.get(patches.value_key(value))))
        return ops.where(flag, given, value)

    def note_fixed(self, site: GraphSite, found: object) -> None:
        """Note an argument that is not a tensor and stays the model's own, usually a cache."""
        if isinstance(found, Tensor | BufferValue):
            self.fixed.append(FixedInput(site, "a buffer that layers write to, as a cache is"))
        elif found is not None and not isinstance(found, bool | int | float | str):
            self.fixed.append(FixedInput(site, f"a {type(found).__name__}, which is no tensor"))

    def depends_on_inputs(self, value: TensorValue) -> bool:
        """Whether the value depends on the inputs of the run."""
        return patches.depends_on_inputs(value, self._live)

    def _obstacle(self, value: TensorValue) -> str:
        if not patches.is_top_level(self.graph):
            return "it is computed inside a branch, a loop or a subgraph"
        if not value.dtype.is_float():
            return f"it holds {value.dtype.name}: positions, offsets or indices, not activations"
        if not self.depends_on_inputs(value):
            return "it is a constant of the model, such as a table of frequencies"
        if not self.has_declared_shape(value):
            return "its shape is computed inside the graph"
        return ""


def _obstacle_of(site: GraphSite) -> str:
    if site.shard is None or site.shard.role not in ("term", "part"):
        return ""
    return "it is one GPU's share of a tensor that the reference has whole"


def _is_known(graph: Graph, size: Any) -> bool:
    return isinstance(size, StaticDim) or (isinstance(size, SymbolicDim) and patches.has_dimension(graph, size.name))


def _size(size: Any) -> int | str:
    return int(size) if isinstance(size, StaticDim) else str(size.name)


def tensors_in(port: str, found: Any) -> Iterator[tuple[str, TensorValue]]:
    """The tensors of a result, each with its port."""
    if (value := value_of(found)) is not None:
        yield port, value
    elif isinstance(found, list | tuple):
        named = ((str(number), each) for number, each in enumerate(found))
        yield from ((f"{port}_{name}", value) for name, each in named if (value := value_of(each)) is not None)
    elif dataclasses.is_dataclass(found):
        fields = ((each.name, getattr(found, each.name, None)) for each in dataclasses.fields(found))
        yield from ((f"{port}_{name}", value) for name, each in fields if (value := value_of(each)) is not None)


def value_of(found: Any) -> TensorValue | None:
    """The graph value of a tensor of either module system; None if there is none."""
    if isinstance(found, TensorValue):
        return found
    if isinstance(found, Tensor) and not found.real and not found.is_distributed:
        (behind,) = found.graph_values
        return behind if isinstance(behind, TensorValue) else None
    return None


@dataclass
class GraphRun:
    """The inputs that one execution of a graph is given, and the values it recorded."""

    given: SiteValues = field(default_factory=dict)
    seen: list[Array] = field(default_factory=list)


class LayerRan(Exception):
    """A graph of one layer has run; its model cannot continue from that."""


class InstrumentedModel:
    """A compiled graph that replaces the model's own: adds the extra inputs and keeps the extra outputs."""

    def __init__(self, model: Any, record: GraphRecord) -> None:
        self._model, self.record, self.run = model, record, GraphRun()

    def execute(self, *buffers: Any) -> list[Buffer]:
        """Run the graph; returns what the model's own call would."""
        results = self._model.execute(*buffers, *self._extra(buffers))
        split = self.record.model_outputs
        self.run = GraphRun(self.run.given, [from_buffer(result) for result in results[split:]])
        if not split:
            raise LayerRan
        return list(results[:split])

    __call__ = execute

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def give(self, given: SiteValues) -> None:
        """Set what the next execution is given, and forget what the last one recorded."""
        self.run = GraphRun(given)

    def captured(self) -> Iterator[tuple[GraphSite, Array]]:
        """The recorded values of the last run, in order.

        Constant numbers are left out: they say nothing about a run.
        """
        wholes = (self.record.merged_tap(tap) for tap in self.record.taps if not tap.is_number)
        return ((site, self.run.seen[output]) for site, output in wholes)

    def _extra(self, buffers: Sequence[Any]) -> Iterator[Buffer]:
        sizes = sizes_of(self.record.kinds, buffers)
        for slot in self.record.slots:
            shape = tuple(sizes[size] if isinstance(size, str) else size for size in slot.shape)
            given = self.run.given.get(slot.site)
            yield to_buffer(given, shape, slot.dtype, slot.device)
            if slot.has_flag:
                yield to_buffer(np.array(given is not None), (), DType.bool, slot.device)


def sizes_of(kinds: Sequence[Any], buffers: Sequence[Any]) -> dict[str, int]:
    """The value of each symbolic dimension in this run."""
    return {
        dim.name: int(size)
        for kind, buffer in zip(kinds, buffers, strict=True)
        for dim, size in zip(kind.shape, buffer.shape, strict=True)
        if isinstance(dim, SymbolicDim)
    }
