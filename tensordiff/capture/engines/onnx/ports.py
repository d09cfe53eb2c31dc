"""The inputs and outputs of each module call in a graph, with their names; and the nodes within a layer.

A module's inputs are the values that its nodes read and others made. Its outputs are the values that its nodes made and
others read, or that the graph outputs. A graph does not record in which order a module takes and returns them. So a
port is numbered only where there is no doubt: an input whose shape no other input of the call has, and outputs none of
which is computed from another. Other ports are named after the value, so that they cannot pair by accident. An exporter
that finds the same computation in two layers keeps the first; values that a layer shares with another in this way are
not among its outputs.

Inside a layer, every node is an operation, ``layer/op_03_MatMul``. Nodes that read only weights and lengths are left
out: another framework computes nothing like them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tensordiff.capture.engines.onnx.graph import Graph, Kind, ValueInfo
from tensordiff.capture.engines.onnx.layers import Call
from tensordiff.capture.engines.onnx.scopes import Scope
from tensordiff.capture.process.layers import entry_key, find_layer
from tensordiff.dump.dtypes import is_float
from tensordiff.dump.model import EntryKey, Origin

_CACHED = re.compile(r"(?:past|present)(?:_key_values)?[._](\d+)[._](?:(?:self|decoder)[._])?(key|value)s?")
_NUMBER = re.compile(r"\d+")
_PLAIN = re.compile(r"[^\w.]+")


class Port(NamedTuple):
    """One tensor of one call."""

    call: Call
    port: str
    value: str

    @property
    def is_input(self) -> bool:
        """Whether it is an input of the call."""
        return self.port.startswith("input")

    @property
    def key(self) -> EntryKey:
        """The key of its entry in a dump."""
        return entry_key(self.call.key, self.port)


class Ports:
    """Finds the ports of calls in one graph."""

    def __init__(self, graph: Graph, found: Sequence[Scope]) -> None:
        self._graph, self._scopes = graph, found
        self._given = set(graph.outputs.values())

    def of(self, root: Call) -> list[Port]:
        """All ports in execution order: a call's inputs, its parts, its outputs."""
        graph = self._graph
        given = {name: value for name, value in graph.outputs.items() if graph.kind(value) is not Kind.CONSTANT}
        inputs = _unique("input", [self._root_port(n, name) for n, name in enumerate(graph.inputs)])
        outputs = _unique("output", [self._root_port(n, name) for n, name in enumerate(given)])
        return [
            *(Port(root, port, name) for port, name in zip(inputs, graph.inputs, strict=True)),
            *(port for part in root.parts for port in self._within(part)),
            *(Port(root, port, value) for port, value in zip(outputs, given.values(), strict=True)),
        ]

    def _root_port(self, number: int, name: str) -> str:
        """The port of an input or output of the graph: its name, or its position if an exporter made the name up."""
        k = self._graph.maker.get(name)
        is_made_up = name.isdigit() or "/" in name or "::" in name or (k is not None and self._scopes[k].op == name)
        return str(number) if is_made_up else port_word(name)

    def _within(self, call: Call) -> Iterator[Port]:
        if call.is_node:
            yield from node_ports(self._graph, call)
            return
        outputs = self._outputs(call)
        if not outputs:
            return  # its work was folded into constants, or only describes the layout of others
        yield from (Port(call, port, value) for port, value in self._inputs(call).items())
        for part in call.parts:
            yield from self._within(part)
        yield from (Port(call, port, value) for port, value in outputs.items())

    def _inputs(self, call: Call) -> dict[str, str]:
        graph = self._graph
        read = dict.fromkeys(value for k in sorted(call.nodes) for value in graph.data_reads(k))
        values = [
            value for value in read if graph.maker.get(value, -1) not in call.nodes and graph.is_activation(value)
        ]
        doubtful = self._doubtful(values)
        ports = [_port_after(value) if value in doubtful else str(n) for n, value in enumerate(values)]
        return dict(zip(_unique("input", ports), values, strict=True))

    def _doubtful(self, values: Sequence[str]) -> set[str]:
        """The values that their shape does not tell from another."""
        outlines = {value: _outline(self._graph.info(value)) for value in values}
        counts = Counter(outlines.values())
        if len(values) > 1 and None in counts:
            return set(values)
        return {value for value, outline in outlines.items() if counts[outline] > 1}

    def _outputs(self, call: Call) -> dict[str, str]:
        graph = self._graph
        made = [name for k in sorted(call.nodes) for name in graph.nodes[k].output if name and name not in graph.same]
        found = [value for value in made if graph.is_activation(value) and self._is_output(value, call)]
        data = [value for value in found if graph.kind(value) is Kind.DATA]
        read = [value for value in data or found if self._readers_outside(value, call)]
        only_given = [value for value in data or found if value not in read]
        named = _unique("output", map(self._graph_output_port, only_given)) if read else []
        return self._numbered(read or only_given, call) | dict(zip(named, only_given, strict=False))

    def _numbered(self, values: list[str], call: Call) -> dict[str, str]:
        if len(values) == 1:
            return {"output": values[0]}
        if any(self._leads_to(value, values, call) for value in values):
            return dict(zip(_unique("output", map(_port_after, values)), values, strict=True))
        return {f"output_{n}": value for n, value in enumerate(values)}

    def _readers_outside(self, value: str, call: Call) -> list[int]:
        return [k for k in self._graph.readers.get(value, ()) if k not in call.nodes]

    def _is_output(self, value: str, call: Call) -> bool:
        """Whether a value is an output of a call.

        It is if the graph outputs it, or if it is read outside by a node that does not correspond to one of its readers
        inside.
        """
        if value in self._given:
            return True
        inside = {self._role(k) for k in self._graph.readers.get(value, ()) if k in call.nodes}
        return any(self._role(k) not in inside for k in self._readers_outside(value, call))

    def _role(self, k: int) -> tuple[str, str]:
        """What a node does in its layer; corresponding layers of a stack differ only in their number."""
        return self._graph.nodes[k].op_type, _NUMBER.sub("#", "".join(self._scopes[k].modules[-1:]))

    def _leads_to(self, value: str, others: Sequence[str], call: Call) -> bool:
        """Whether another of the values is computed from this one within the call."""
        reached, wanted = {value}, set(others) - {value}
        for k in sorted(call.nodes):
            if not reached.isdisjoint(map(self._graph.value, self._graph.reads[k])):
                reached.update(self._graph.nodes[k].output)
        return not reached.isdisjoint(wanted)

    def _graph_output_port(self, value: str) -> str:
        return _port_after(next(name for name, given in self._graph.outputs.items() if given == value))


def node_ports(graph: Graph, call: Call) -> Iterator[Port]:
    """The ports of a call that is a single node; a node states the order of its inputs and outputs."""
    (k,) = call.nodes
    outputs = list(graph.nodes[k].output)
    for n, name in enumerate(graph.nodes[k].input):
        if name and graph.is_activation(value := graph.value(name)):
            yield Port(call, f"input_{n}", value)
    for n, name in enumerate(outputs):
        if name and graph.is_activation(name):
            yield Port(call, "output" if len(outputs) == 1 else f"output_{n}", name)


def _outline(known: ValueInfo) -> tuple[bool, tuple[int, ...]] | None:
    """What must differ between two values so that neither can pair with the other's partner."""
    if known.dtype is None or known.shape is None:
        return None
    return is_float(known.dtype), tuple(length for length in known.shape if length != 1)


def _port_after(value: str) -> str:
    """A port named after a value, or the end of a long name; never a bare number, which would mean a position."""
    name = port_word("/".join(value.split("/")[-2:]))
    return f"value_{name}" if name[0].isdigit() else name


def port_word(name: str) -> str:
    """A name as part of a port; a cache's as transformers names it."""
    if found := _CACHED.search(name):
        return f"past_key_values_{found[1]}_{found[2]}"
    return _PLAIN.sub("_", name).strip("_") or "unnamed"


def _unique(way: str, names: Iterable[str]) -> list[str]:
    """Unique ports for these names."""
    found: list[str] = []
    for name in names:
        port, more = f"{way}_{name}", 1
        while port in found:
            port, more = f"{way}_{name}_again{more}", more + 1
        found.append(port)
    return found


def ops_of(graph: Graph, root: Call, found: Sequence[Scope], asked: str) -> tuple[str, list[Port]]:
    """The layer that a user means, and the ports of the nodes in it."""
    layer = find_layer(asked, (call.layer for call in root.walk()))
    calls = sorted((call for call in root.walk() if call.layer == layer), key=lambda call: call.number)
    return layer, [port for call in calls for op in _ops(graph, call, found) for port in node_ports(graph, op)]


def _ops(graph: Graph, call: Call, found: Sequence[Scope]) -> Iterator[Call]:
    """The nodes of a call, each as a call of its own."""
    flowing = [k for k in sorted(call.nodes) if any(map(graph.is_activation, graph.nodes[k].output))]
    for number, k in enumerate(flowing):
        kind = graph.nodes[k].op_type
        origin = Origin(kind, found[k].file, found[k].line)
        layer = f"{call.layer}/op_{number:02d}_{kind}"
        yield Call(layer, call.number, frozenset([k]), call.depth + 1, (), origin, is_node=True)
