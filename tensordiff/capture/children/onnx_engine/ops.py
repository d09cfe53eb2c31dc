"""Inside a layer: every node of one call after the other, as ``layer/op_03_MatMul``.

Nodes on weights and lengths alone are left out: they compute nothing that another framework would.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

from tensordiff.capture.children.onnx_engine.graph import Graph
from tensordiff.capture.children.onnx_engine.layers import ROOT, Call
from tensordiff.capture.children.onnx_engine.ports import Port, node_ports
from tensordiff.capture.children.onnx_engine.scopes import Scope
from tensordiff.dump.model import Origin
from tensordiff.errors import CaptureError, printable

_PREFIX = re.compile(rf"^(?:{ROOT}\.)+")


def ops_of(graph: Graph, root: Call, found: Sequence[Scope], asked: str) -> tuple[str, list[Port]]:
    """The layer that a person means, and the ports of the nodes in it."""
    layer = find_layer(asked, (call.layer for call in root.walk()))
    calls = sorted((call for call in root.walk() if call.layer == layer), key=lambda call: call.number)
    return layer, [port for call in calls for op in _ops(graph, call, found) for port in node_ports(graph, op)]


def _ops(graph: Graph, call: Call, found: Sequence[Scope]) -> Iterator[Call]:
    """The nodes of a call, each as one itself."""
    flowing = [k for k in sorted(call.nodes) if any(map(graph.flows, graph.nodes[k].output))]
    for number, k in enumerate(flowing):
        kind = graph.nodes[k].op_type
        origin = Origin(kind, found[k].file, found[k].line)
        layer = f"{call.layer}/op_{number:02d}_{kind}"
        yield Call(layer, call.number, frozenset([k]), call.depth + 1, (), origin, is_node=True)


def find_layer(asked: str, layers: Iterable[str]) -> str:
    """The layer that a person means: by its name, or by its end where only one has it; the reference's name will do."""
    there = list(dict.fromkeys(layers))
    exact = [layer for layer in there if asked in (layer, layer.removeprefix(f"{ROOT}."))]
    end = _PREFIX.sub("", asked)
    found = exact or [layer for layer in there if layer.endswith(f".{end}")]
    if len(found) == 1 or (exact and asked in exact):
        return asked if asked in exact else found[0]
    near = ", ".join((found or get_close_matches(asked, there, 4, 0.3))[:4]) or "none"
    why = f"there are {len(found)} of that name; give one whole" if found else "there is no such layer; near it"
    raise CaptureError(f"{printable(asked)}: {why}: {printable(near)}")
