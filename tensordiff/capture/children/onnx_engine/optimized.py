"""The graph as onnxruntime would run it by itself: optimized first, and only then looked at.

A value that is an output cannot be fused away. So the graph is optimized with the outputs it has, written down, and
read back; of the layers' tensors those are left whose value is still there under its name. Optimizations that change
how values are laid out in memory are left off: a name would mean something else then.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tensordiff.capture.children.onnx_engine.graph import Graph, Wires
from tensordiff.capture.children.onnx_engine.model import load
from tensordiff.capture.children.onnx_engine.ports import Port
from tensordiff.capture.children.onnx_engine.session import Engine
from tensordiff.capture.children.onnx_engine.writing import Reading


@contextmanager
def optimized(engine: Engine) -> Iterator[Reading]:
    """Where the tensors are to be had that are left. The optimized graph lies in a file for as long as it is run."""
    with tempfile.TemporaryDirectory(prefix="tensordiff-") as folder:
        path = Path(folder) / engine.model.path.with_suffix(".onnx").name
        engine.optimize(path)
        model = load(str(path))
        wires = Wires.of(model.nodes)
        there = {*wires.maker, *engine.feeds}
        names = {value: name for name, value in engine.graph.same.items() if name in there}
        names |= {value: value for value in there}
        yield Reading(replace(engine, model=model), wires, {}, lambda port: names[port.value])


def left(ports: Sequence[Port], graph: Graph, reading: Reading) -> list[Port]:
    """The ports whose value is still there, under any of its names."""
    there = {*(reading.wires or graph.wires).maker, *reading.engine.feeds}
    there |= {graph.value(name) for name in there}
    return [port for port in ports if port.value in there]
