"""Runs a graph on the reference's inputs: the graph is rewired so that its nodes read other values.

A value injected as an input of a layer is read only by the nodes of that layer; with nested layers, the innermost one
decides. A value that replaces an output is read by all nodes outside the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from onnx import NodeProto
from onnx.helper import np_dtype_to_tensor_dtype

from tensordiff.capture.engines.onnx.graph import Graph, NodeLinks
from tensordiff.capture.engines.onnx.layers import Call
from tensordiff.capture.engines.onnx.model import subgraphs
from tensordiff.capture.engines.onnx.ports import Port
from tensordiff.capture.engines.onnx.session import Feed, GraphRunner
from tensordiff.capture.engines.onnx.writing import ValueReader
from tensordiff.capture.events import Phase, Tell
from tensordiff.capture.injection.injector import InjectionPort, Injector, plan_injection
from tensordiff.capture.injection.passes import Pass
from tensordiff.capture.injection.sources import SpecOnly
from tensordiff.capture.settings import Injection
from tensordiff.dump import Entry
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import EntryKey, Spec

Replacements = Mapping[tuple[Call, str], str]
"""The name of the value to read instead, by the call and the value that it replaces."""
CallPath = tuple[Call, ...]
"""Nested calls, the outermost first."""


@dataclass(frozen=True)
class Nesting:
    """The calls around each call and each node."""

    of_call: Mapping[Call, CallPath]
    """For each call, the calls around it and itself."""
    of_node: Mapping[int, CallPath]

    @classmethod
    def of(cls, root: Call) -> Nesting:
        """Index the calls of a whole model."""
        of_call: dict[Call, CallPath] = {}
        of_node: dict[int, CallPath] = {}
        waiting: list[tuple[Call, CallPath]] = [(root, ())]
        while waiting:
            call, above = waiting.pop()
            around = of_call[call] = (*above, call)
            of_node |= dict.fromkeys(call.nodes, around)
            waiting += [(part, around) for part in call.parts]
        return cls(of_call, of_node)


@dataclass(frozen=True)
class Rewired:
    """A graph in which some values are replaced."""

    graph: Graph
    nesting: Nesting
    inputs: Replacements = field(default_factory=dict)
    outputs: Replacements = field(default_factory=dict)

    def name_of(self, port: Port) -> str:
        """The name of a port's tensor in this graph."""
        if not port.is_input and (put := self.outputs.get((port.call, port.value))) is not None:
            return put
        return self._seen(port.value, self.nesting.of_call[port.call])

    def links(self) -> NodeLinks:
        """The nodes, with their replaced inputs."""
        return NodeLinks.of(self._node(k, node) for k, node in enumerate(self.graph.nodes))

    def _node(self, k: int, node: NodeProto) -> NodeProto:
        around = self.nesting.of_node[k]
        # By first names: the node that makes a second name may be in a layer with replaced inputs.
        read = {name: self._seen(self.graph.value(name), around) for name in self.graph.reads[k]}
        changed = {name: other for name, other in read.items() if name != other}
        return _renamed(node, changed) if changed else node

    def _seen(self, value: str, around: CallPath) -> str:
        """The value that nodes within these calls read in place of ``value``."""
        maker = self.graph.maker.get(value)
        made = () if maker is None else self.nesting.of_node[maker]
        common = sum(1 for ours, theirs in zip(around, made, strict=False) if ours is theirs)
        for call in reversed(around[common:]):
            if (put := self.inputs.get((call, value))) is not None:
                return put
        puts = (self.outputs.get((call, value)) for call in made[common:])
        return next((put for put in puts if put is not None), value)


def _renamed(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """A copy of a node that reads other values, also in its inner graphs; those use no name twice."""
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


class InjectedGraph:
    """The passes of an injected run: for each, the graph that reads the reference's values.

    Planning needs no run: the graph tells which layers there are, and the shapes are known.
    """

    def __init__(self, injection: Injection, runner: GraphRunner, root: Call, ports: Sequence[Port]) -> None:
        self._runner, self._nesting = runner, Nesting.of(root)
        self._ports = [port for port in ports if _spec(runner.graph, port) is not None]
        entries = [entry for port in self._ports if (entry := _entry(runner.graph, port)) is not None]
        self._injector = Injector(plan_injection(injection, entries, _aliases(self._ports)))
        self.report = self._injector.report

    def readings(self, tell: Tell) -> Iterator[tuple[ValueReader, list[Port]]]:
        """For each pass, where to read its tensors, and which ports to write from it."""
        for injection_pass in self._injector.passes():
            tell(Phase(injection_pass.title))
            yield (
                self._reading(injection_pass),
                [port for port in self._ports if port.call.layer in injection_pass.written],
            )

    def _reading(self, injection_pass: Pass) -> ValueReader:
        feeds: dict[str, Feed] = {}
        inputs = self._replace(partial(self._injector.inputs, injection_pass), self._by_call(is_input=True), feeds)
        outputs = self._replace(partial(self._injector.outputs, injection_pass), self._by_call(is_input=False), feeds)
        rewired = Rewired(self._runner.graph, self._nesting, inputs, outputs)
        return ValueReader(self._runner, rewired.links(), feeds, rewired.name_of)

    def _by_call(self, *, is_input: bool) -> dict[Call, list[Port]]:
        calls: dict[Call, list[Port]] = {}
        for port in self._ports:
            if port.is_input is is_input:
                calls.setdefault(port.call, []).append(port)
        return calls

    def _replace(
        self, values: Callable[..., dict[str, Array]], calls: Mapping[Call, Sequence[Port]], feeds: dict[str, Feed]
    ) -> dict[tuple[Call, str], str]:
        """Find the replacements at the ports of these calls, and add their values to ``feeds``."""
        replaced: dict[tuple[Call, str], str] = {}
        for call, ports in calls.items():
            found = values(call.key, {port.port: InjectionPort(_spec(self._runner.graph, port)) for port in ports})
            for port in ports:
                if (value := found.get(port.port)) is not None:
                    replaced[call, port.value] = name = f"tensordiff put {len(feeds)}"
                    feeds[name] = Feed(value, np_dtype_to_tensor_dtype(value.dtype))
        return replaced


def _spec(graph: Graph, port: Port) -> Spec | None:
    dtype, shape = graph.info(port.value)
    return None if dtype is None or shape is None else Spec(shape, dtype)


def _entry(graph: Graph, port: Port) -> Entry | None:
    spec, call = _spec(graph, port), port.call
    if spec is None:
        return None
    return Entry(port.key.name, call.layer, port.port, call.number, 0, SpecOnly(spec), call.origin)


def _aliases(ports: Sequence[Port]) -> Mapping[EntryKey, EntryKey]:
    """Inputs that are the same value as an earlier port."""
    first: dict[str, EntryKey] = {}
    aliases: dict[EntryKey, EntryKey] = {}
    for port in ports:
        before = first.setdefault(port.value, port.key)
        if port.is_input and before != port.key:
            aliases[port.key] = before
    return aliases
