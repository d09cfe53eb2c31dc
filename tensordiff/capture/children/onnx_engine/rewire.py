"""A graph some of whose layers read other values: the reference's, in the place of what came in or went out.

A value that is put in for a layer is seen by the nodes of that layer alone. Where it is put in for several that lie in
each other, the innermost decides. An output that is put in is seen by all that read it from outside of the layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx import NodeProto

from tensordiff.capture.children.onnx_engine.graph import Graph, Wires
from tensordiff.capture.children.onnx_engine.layers import Call
from tensordiff.capture.children.onnx_engine.model import subgraphs
from tensordiff.capture.children.onnx_engine.ports import Port

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
