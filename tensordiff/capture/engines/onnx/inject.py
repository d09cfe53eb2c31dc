"""A graph some of whose layers read other values: the reference's, in the place of what came in or went out.

A value that is put in for a layer is seen by the nodes of that layer alone. Where it is put in for several that lie in
each other, the innermost decides. An output that is put in is seen by all that read it from outside of the layer.

Running a graph on the reference's inputs: which values go in where, pass by pass.

What answers what is decided where it is for every framework, in ``donors``; which layers are given theirs in the same
pass, in ``where``; how a graph comes to read other values, in ``rewire``. Nothing is run before it is known what goes
in: a graph says which layers there are, and the shapes are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from onnx import NodeProto
from onnx.helper import np_dtype_to_tensor_dtype

from tensordiff.capture.engines.onnx.graph import Graph, Wires
from tensordiff.capture.engines.onnx.layers import Call
from tensordiff.capture.engines.onnx.model import subgraphs
from tensordiff.capture.engines.onnx.ports import Port
from tensordiff.capture.engines.onnx.session import Engine, Feed
from tensordiff.capture.engines.onnx.writing import Reading
from tensordiff.capture.injection.passes import Layers, Pass, passes
from tensordiff.capture.injection.sources import Donors, find_donors, isolates, value_or_why
from tensordiff.capture.settings import Injection
from tensordiff.dump import Entry
from tensordiff.dump.dtypes import Array, is_float
from tensordiff.dump.model import EntryKey, Spec
from tensordiff.dump.names import parse_name
from tensordiff.errors import CaptureError

Puts = Mapping[tuple[Call, str], str]
"""What is read instead, by the call and the value it is put in for."""
Around = tuple[Call, ...]
"""Calls within each other, the outermost first."""


@dataclass(frozen=True)
class Nesting:
    """Which calls are around what."""

    of_call: Mapping[Call, Around]
    """Itself included."""
    of_node: Mapping[int, Around]

    @classmethod
    def of(cls, root: Call) -> Nesting:
        """Look at a whole model."""
        of_call: dict[Call, Around] = {}
        of_node: dict[int, Around] = {}
        waiting: list[tuple[Call, Around]] = [(root, ())]
        while waiting:
            call, above = waiting.pop()
            around = of_call[call] = (*above, call)
            of_node |= dict.fromkeys(call.nodes, around)
            waiting += [(part, around) for part in call.parts]
        return cls(of_call, of_node)


@dataclass(frozen=True)
class Rewired:
    """A graph with values put in."""

    graph: Graph
    nesting: Nesting
    inputs: Puts = field(default_factory=dict)
    outputs: Puts = field(default_factory=dict)

    def name_of(self, port: Port) -> str:
        """What a port's tensor is called in this graph."""
        if not port.is_input and (put := self.outputs.get((port.call, port.value))) is not None:
            return put
        return self._seen(port.value, self.nesting.of_call[port.call])

    def wires(self) -> Wires:
        """The nodes, reading what they are to read."""
        return Wires.of(self._node(k, node) for k, node in enumerate(self.graph.nodes))

    def _node(self, k: int, node: NodeProto) -> NodeProto:
        around = self.nesting.of_node[k]
        # By first names: what makes a second one may lie in a layer that something is put in for.
        read = {name: self._seen(self.graph.value(name), around) for name in self.graph.reads[k]}
        changed = {name: other for name, other in read.items() if name != other}
        return _renamed(node, changed) if changed else node

    def _seen(self, value: str, around: Around) -> str:
        """What stands in a value's place for who is within these calls."""
        maker = self.graph.maker.get(value)
        made = () if maker is None else self.nesting.of_node[maker]
        common = sum(1 for ours, theirs in zip(around, made, strict=False) if ours is theirs)
        for call in reversed(around[common:]):
            if (put := self.inputs.get((call, value))) is not None:
                return put
        puts = (self.outputs.get((call, value)) for call in made[common:])
        return next((put for put in puts if put is not None), value)


def _renamed(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """A copy of a node that reads other values, within its inner graphs too: those use no name twice."""
    copy = NodeProto()
    copy.CopyFrom(node)
    _rename(copy, names)
    return copy


def _rename(node: NodeProto, names: Mapping[str, str]) -> None:
    for n, name in enumerate(node.input):
        node.input[n] = names.get(name, name)
    for inner in subgraphs(node):
        for each in inner.node:
            _rename(each, names)


class Outline(NamedTuple):
    """A tensor that was not computed, of which only shape and type are known."""

    spec: Spec

    def read(self) -> Array:
        """There is nothing to read."""
        raise CaptureError("this tensor was not computed")


@dataclass
class Report:
    """What every layer was given and what it kept of its own."""

    injection: Injection
    passes: int = 0
    put: dict[tuple[Call, str], str] = field(default_factory=dict)
    """The reference's entry by call and port."""
    kept: dict[tuple[Call, str], str] = field(default_factory=dict)
    whole: set[Call] = field(default_factory=set)
    """Those that were given what matters: what they give depends on nothing before them."""

    def names(self, port: Port) -> tuple[str, ...] | None:
        """The reference's entries that a tensor holds, or its layer was given."""
        if port.is_input or (port.call, port.port) in self.put:
            found = self.put.get((port.call, port.port))
            return None if found is None else (found,)
        given = tuple(name for (call, at), name in self.put.items() if call is port.call and at.startswith("input"))
        return given if port.call in self.whole else None

    def sentence(self) -> str:
        """All of it in short."""
        count = len({call for call, _ in (*self.put, *self.kept)})
        return f"{len(self.whole)} of {count} layers were given the reference's inputs"

    def answered(self, layer: str) -> str:
        """What the reference calls a layer: the one whose recorded tensor it was given."""
        return parse_name(next((name for (call, _), name in self.put.items() if call.layer == layer), layer)).layer

    def as_json(self) -> dict[str, Any]:
        """All of it, for the manifest."""
        layers: dict[str, Any] = {}
        for what, table in (("injected", self.put), ("kept", self.kept)):
            for (call, port), text in table.items():
                found = layers.setdefault(_called(call), {"injected": {}, "kept": {}, "isolated": call in self.whole})
                found[what][port] = text
        about = self.injection
        named = {"reference": about.dump, "at": about.at, "rules": about.rules, "passes": self.passes}
        return {**named, "beside": {"weights": "the candidate's own"}, "layers": layers}


def _called(call: Call) -> str:
    return f"{call.layer}({call.number})" if call.number > 1 else call.layer


class Injecting:
    """The passes of an injected run."""

    def __init__(self, injection: Injection, engine: Engine, root: Call, ports: Sequence[Port]) -> None:
        self.report = Report(injection)
        self._engine, self._nesting = engine, Nesting.of(root)
        self._ports = [port for port in ports if _spec(engine.graph, port) is not None]
        entries = [entry for port in self._ports if (entry := _entry(engine.graph, port)) is not None]
        self._donors: Donors = find_donors(injection, entries, _same(self._ports))
        self._passes = passes(injection.at, Layers.of(entries, self._donors.canonical))
        self.report.passes = len(self._passes)

    def readings(self) -> Iterator[tuple[Reading, list[Port]]]:
        """For each pass, where its tensors are to be had, and which are to be written from it."""
        for one in self._passes:
            yield self._reading(one), [port for port in self._ports if port.call.layer in one.written]

    def _reading(self, one: Pass) -> Reading:
        feeds: dict[str, Feed] = {}
        inputs = self._puts([port for port in self._ports if port.is_input and port.call.layer in one.inputs], feeds)
        outputs = self._puts(
            [port for port in self._ports if not port.is_input and port.call.layer in one.outputs], feeds
        )
        self._note_whole([call for call in self._nesting.of_call if call.layer in one.inputs])
        rewired = Rewired(self._engine.graph, self._nesting, inputs, outputs)
        return Reading(self._engine, rewired.wires(), feeds, rewired.name_of)

    def _puts(self, ports: Sequence[Port], feeds: dict[str, Feed]) -> dict[tuple[Call, str], str]:
        """What is put in at these ports; its values go to the feeds."""
        puts: dict[tuple[Call, str], str] = {}
        for port in ports:
            value = self._value(port)
            if value is not None:
                puts[port.call, port.value] = name = f"tensordiff put {len(feeds)}"
                feeds[name] = Feed(value, np_dtype_to_tensor_dtype(value.dtype))
        return puts

    def _value(self, port: Port) -> Array | None:
        """The reference's values for a port, in its own type; None where there are none, and it is noted why."""
        donor = self._donors.get(place_of(port))
        found, own = value_or_why(donor), _spec(self._engine.graph, port)
        if donor is None or own is None or isinstance(found, str):
            self.report.kept[port.call, port.port] = str(found)
            return None
        if found.shape != own.shape:
            sentence = f"{donor.name} is of shape {list(found.shape)}, and {list(own.shape)} is wanted now"
            self.report.kept[port.call, port.port] = sentence
            return None
        self.report.put[port.call, port.port] = donor.name
        return np.asarray(found, own.dtype, order="C")

    def _note_whole(self, calls: Sequence[Call]) -> None:
        """Note the calls that were isolated."""
        wanted = set(calls)
        sizes: dict[Call, dict[str, int]] = {}
        for port in self._ports:
            spec = _spec(self._engine.graph, port)
            if port.is_input and port.call in wanted and spec is not None and is_float(spec.dtype):
                sizes.setdefault(port.call, {})[port.port] = spec.size
        for call in calls:
            if isolates(sizes.get(call, {}), [port for other, port in self.report.put if other is call]):
                self.report.whole.add(call)


def _spec(graph: Graph, port: Port) -> Spec | None:
    dtype, shape = graph.about(port.value)
    return None if dtype is None or shape is None else Spec(shape, dtype)


def _entry(graph: Graph, port: Port) -> Entry | None:
    spec, call = _spec(graph, port), port.call
    return None if spec is None else Entry(port.name, call.layer, port.port, call.number, 0, Outline(spec), call.origin)


def place_of(port: Port) -> EntryKey:
    """What tells a port's entry from others."""
    return EntryKey(port.name, 0, port.call.number)


def _same(ports: Sequence[Port]) -> Mapping[EntryKey, EntryKey]:
    """Inputs that are the very value which stood elsewhere before."""
    first: dict[str, EntryKey] = {}
    found: dict[EntryKey, EntryKey] = {}
    for port in ports:
        before = first.setdefault(port.value, place_of(port))
        if port.is_input and before != place_of(port):
            found[place_of(port)] = before
    return found
