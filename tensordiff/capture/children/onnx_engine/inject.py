"""Running a graph on the reference's inputs: which values go in where, pass by pass.

What answers what is decided where it is for every framework, in ``donors``; which layers are given theirs in the same
pass, in ``where``; how a graph comes to read other values, in ``rewire``. Nothing is run before it is known what goes
in: a graph says which layers there are, and the shapes are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from onnx.helper import np_dtype_to_tensor_dtype

from tensordiff.capture.children.donors import Donors, find_donors, isolates, value_or_why
from tensordiff.capture.children.onnx_engine.graph import Graph
from tensordiff.capture.children.onnx_engine.layers import Call
from tensordiff.capture.children.onnx_engine.ports import Port
from tensordiff.capture.children.onnx_engine.rewire import Nesting, Rewired
from tensordiff.capture.children.onnx_engine.session import Engine, Feed
from tensordiff.capture.children.onnx_engine.writing import Reading
from tensordiff.capture.children.where import Layers, Pass, passes
from tensordiff.capture.settings import Injection
from tensordiff.dump import Entry
from tensordiff.dump.dtypes import Array, is_float
from tensordiff.dump.manifest import Place
from tensordiff.dump.model import Spec
from tensordiff.dump.names import parse_name
from tensordiff.errors import CaptureError


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


def place_of(port: Port) -> Place:
    """What tells a port's entry from others."""
    return Place(port.name, 0, port.call.number)


def _same(ports: Sequence[Port]) -> Mapping[Place, Place]:
    """Inputs that are the very value which stood elsewhere before."""
    first: dict[str, Place] = {}
    found: dict[Place, Place] = {}
    for port in ports:
        before = first.setdefault(port.value, place_of(port))
        if port.is_input and before != place_of(port):
            found[place_of(port)] = before
    return found
