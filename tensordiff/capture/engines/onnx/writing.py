"""Writing a graph's values into a dump: the ports that were asked for, in order, as many at a time as memory allows.

With ``--optimized`` the graph is first optimized as onnxruntime would by itself, saved, and read back; the ports that
remain are those whose value still exists under its name. A value that is an output cannot be fused away, so the graph
is optimized with the outputs it has. Optimizations that change the memory layout of values are left off, since a name
would mean something else then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from onnx import TensorProto, numpy_helper

from tensordiff.capture.engines.onnx.failures import NodeFailure
from tensordiff.capture.engines.onnx.graph import Graph, NodeLinks
from tensordiff.capture.engines.onnx.model import Model, load
from tensordiff.capture.engines.onnx.ports import Port
from tensordiff.capture.engines.onnx.session import Feed, GraphRunner
from tensordiff.capture.events import Tell, ThrottledProgress
from tensordiff.capture.process.disk_space import scratch_folder
from tensordiff.capture.process.output import Output
from tensordiff.dump.dtypes import DTYPES, Array, name_of
from tensordiff.dump.model import CallKey, EntryKey, Origin
from tensordiff.dump.names import parameter_name

PART = 256 << 20
"""Bytes of values that are asked for at a time; a single one may be larger."""


@dataclass(frozen=True)
class ValueReader:
    """Where the tensors of ports are to be had: in the graph as it is, or in one that reads other values."""

    runner: GraphRunner
    links: NodeLinks | None = None
    more: Mapping[str, Feed] = field(default_factory=dict)
    name_of: Callable[[Port], str] = lambda port: port.value

    def arrays(self, ports: Sequence[Port]) -> dict[str, Array | str]:
        """The values of some ports, by the name they have here."""
        return self.runner.values(map(self.name_of, ports), self.links, self.more)

    def nbytes(self, port: Port) -> int | None:
        """How large a tensor will be, where that is known."""
        return self.runner.graph.info(port.value).nbytes


@dataclass
class PortWriter:
    """One pass over ports, a part at a time."""

    reading: ValueReader
    output: Output
    tell: Tell
    injected: Callable[[CallKey, str], tuple[str, ...] | None] = lambda _, __: None
    """What of the reference a tensor of an injected run holds, or its call was given."""

    def write(self, ports: Sequence[Port]) -> None:
        """Write the tensors of these ports. Where a node cannot be computed, what comes before it is written first."""
        progress = ThrottledProgress(self.tell, len(ports))
        for part in parts(self._affordable(ports), self.reading):
            self._add(part, self._arrays(part), progress)

    def _arrays(self, part: Sequence[Port]) -> dict[str, Array | str]:
        try:
            return self.reading.arrays(part)
        except NodeFailure as stopped:
            self._rescue(part, stopped)
            raise

    def _add(
        self, part: Sequence[Port], arrays: Mapping[str, Array | str], progress: ThrottledProgress | None = None
    ) -> None:
        for port in part:
            array = arrays[self.reading.name_of(port)]
            if isinstance(array, str):
                self.output.budget.leave_out(array)
            else:
                origin = port.call.origin._replace(injected=self.injected(port.call.key, port.port))
                self.output.add(port.key, array, origin)
            if progress is not None:
                progress.advance(port.call.layer)

    def _affordable(self, ports: Iterable[Port]) -> Iterator[Port]:
        """Without those of which it is known that they go beyond the budget: they need not be computed."""
        ahead = replace(self.output.budget)  # it counts what is left out in the same place, and wants for itself
        return (port for port in ports if ahead.allows(self.reading.nbytes(port) or 0))

    def _rescue(self, part: Sequence[Port], stopped: NodeFailure) -> None:
        """What was made before the node that could not be computed."""
        if stopped.node is None:
            return
        maker = self.reading.runner.graph.maker
        reached = [port for port in part if maker.get(port.value, -1) < stopped.node]
        self._add(reached, self.reading.arrays(reached))


def parts(ports: Iterable[Port], reading: ValueReader, most: int | None = None) -> Iterator[list[Port]]:
    """Ports in order, in parts whose values are not larger together than they should be."""
    largest = PART if most is None else most
    part: list[Port] = []
    held: set[str] = set()
    total = 0
    for port in ports:
        name, size = reading.name_of(port), reading.nbytes(port) or 0
        if part and name not in held and total + size > largest:
            yield part
            part, held, total = [], set(), 0
        if name not in held:
            held.add(name)
            total += size
        part.append(port)
    if part:
        yield part


def size_of(ports: Iterable[Port], reading: ValueReader) -> int:
    """Bytes that a dump of these ports will take, as far as is known."""
    return sum(reading.nbytes(port) or 0 for port in ports)


@contextmanager
def optimized(runner: GraphRunner) -> Iterator[ValueReader]:
    """Where the tensors are to be had that are left. The optimized graph lies in a file for as long as it is run."""
    with scratch_folder() as folder:
        path = Path(folder) / runner.model.path.with_suffix(".onnx").name
        runner.optimize(path)
        model = load(str(path))
        links = NodeLinks.of(model.nodes)
        there = {*links.maker, *runner.feeds}
        names = {value: name for name, value in runner.graph.same.items() if name in there}
        names |= {value: value for value in there}
        yield ValueReader(replace(runner, model=model), links, {}, lambda port: names[port.value])


def remaining_ports(ports: Sequence[Port], graph: Graph, reading: ValueReader) -> list[Port]:
    """The ports whose value is still there, under any of its names."""
    there = {*(reading.links or graph.links).maker, *reading.runner.feeds}
    there |= {graph.value(name) for name in there}
    return [port for port in ports if port.value in there]


_BYTES = {
    TensorProto.FLOAT: 4, TensorProto.FLOAT16: 2, TensorProto.BFLOAT16: 2, TensorProto.DOUBLE: 8,
    TensorProto.FLOAT8E4M3FN: 1, TensorProto.FLOAT8E5M2: 1,
}  # fmt: skip


def _parameters(model: Model) -> Iterator[TensorProto]:
    return (each for each in model.weights if each.data_type in _BYTES and math.prod(each.dims) > 1)


def parameter_bytes(model: Model) -> int:
    """How much all of them take."""
    return sum(math.prod(each.dims) * _BYTES[each.data_type] for each in _parameters(model))


def write_parameters(model: Model, output: Output) -> None:
    """Write all of them, one after the other."""
    for each in _parameters(model):
        array = numpy_helper.to_array(each, str(model.folder))
        if name_of(array.dtype) in DTYPES:
            output.add_parameter(EntryKey(parameter_name(each.name), 0, 1), array, Origin())
        else:
            output.budget.leave_out(f"its type {array.dtype} is not written")
