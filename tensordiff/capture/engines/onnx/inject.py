"""Running a graph on the reference's inputs: the graph is rewired so that its nodes read other values.

A value that is put in for a layer's input is read by the nodes of that layer alone; where layers within each other are
given values, the innermost decides. A value that replaces an output is read by all nodes outside the layer.
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
"""What is read instead, by the call and the value it is put in for."""
CallPath = tuple[Call, ...]
"""Calls within each other, the outermost first."""


@dataclass(frozen=True)
class Nesting:
    """Which calls are around what."""

    of_call: Mapping[Call, CallPath]
    """Itself included."""
    of_node: Mapping[int, CallPath]

    @classmethod
    def of(cls, root: Call) -> Nesting:
        """Look at a whole model."""
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
    """A graph with values put in."""

    graph: Graph
    nesting: Nesting
    inputs: Replacements = field(default_factory=dict)
    outputs: Replacements = field(default_factory=dict)

    def name_of(self, port: Port) -> str:
        """What a port's tensor is called in this graph."""
        if not port.is_input and (put := self.outputs.get((port.call, port.value))) is not None:
            return put
        return self._seen(port.value, self.nesting.of_call[port.call])

    def links(self) -> NodeLinks:
        """The nodes, reading what they are to read."""
        return NodeLinks.of(self._node(k, node) for k, node in enumerate(self.graph.nodes))

    def _node(self, k: int, node: NodeProto) -> NodeProto:
        around = self.nesting.of_node[k]
        # By first names: what makes a second one may lie in a layer that something is put in for.
        read = {name: self._seen(self.graph.value(name), around) for name in self.graph.reads[k]}
        changed = {name: other for name, other in read.items() if name != other}
        return _renamed(node, changed) if changed else node

    def _seen(self, value: str, around: CallPath) -> str:
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


class InjectedGraph:
    """The passes of an injected run: for each, the graph that reads the reference's values.

    Nothing is run to plan them: a graph says which layers there are, and the shapes are known.
    """

    def __init__(self, injection: Injection, runner: GraphRunner, root: Call, ports: Sequence[Port]) -> None:
        self._runner, self._nesting = runner, Nesting.of(root)
        self._ports = [port for port in ports if _spec(runner.graph, port) is not None]
        entries = [entry for port in self._ports if (entry := _entry(runner.graph, port)) is not None]
        self._injector = Injector(plan_injection(injection, entries, _aliases(self._ports)))
        self.report = self._injector.report

    def readings(self, tell: Tell) -> Iterator[tuple[ValueReader, list[Port]]]:
        """For each pass, where its tensors are read from, and which are to be written from it."""
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
        """What is read instead at the ports of these calls; the values are added to the feeds."""
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
    """Inputs that are the very value of an earlier port."""
    first: dict[str, EntryKey] = {}
    aliases: dict[EntryKey, EntryKey] = {}
    for port in ports:
        before = first.setdefault(port.value, port.key)
        if port.is_input and before != port.key:
            aliases[port.key] = before
    return aliases
