"""Writes a graph's values and parameters into a dump: values in order, as many at a time as memory allows.

With ``--optimized`` the graph is first optimized as onnxruntime would by default, saved, and read back; the remaining
ports are those whose value still exists under its name. A value that is an output cannot be fused away, so the graph is
optimized with only its own outputs. Optimizations that change the memory layout of values are left off, because a name
would then mean something else.
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
"""Bytes of values that are requested at a time; a single value may be larger."""


@dataclass(frozen=True)
class ValueReader:
    """Reads the tensors of ports, from the graph as it is or from one that reads other values."""

    runner: GraphRunner
    links: NodeLinks | None = None
    more: Mapping[str, Feed] = field(default_factory=dict)
    name_of: Callable[[Port], str] = lambda port: port.value

    def arrays(self, ports: Sequence[Port]) -> dict[str, Array | str]:
        """The values of some ports, by their names in this graph."""
        return self.runner.values(map(self.name_of, ports), self.links, self.more)

    def nbytes(self, port: Port) -> int | None:
        """The size of a tensor, if known."""
        return self.runner.graph.info(port.value).nbytes


@dataclass
class PortWriter:
    """Writes ports in one pass, a part at a time."""

    reading: ValueReader
    output: Output
    tell: Tell
    injected: Callable[[CallKey, str], tuple[str, ...] | None] = lambda _, __: None
    """The entries of the reference that a tensor of an injected run holds, or that its call was given."""

    def write(self, ports: Sequence[Port]) -> None:
        """Write the tensors of these ports. If a node cannot be computed, everything before it is written first."""
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
        """The ports that fit the budget; others need not be computed. Ports of unknown size are kept."""
        # it counts left-out tensors in the same place, but requested bytes separately
        ahead = replace(self.output.budget)
        return (port for port in ports if ahead.allows(self.reading.nbytes(port) or 0))

    def _rescue(self, part: Sequence[Port], stopped: NodeFailure) -> None:
        """Write what was computed before the node that failed."""
        if stopped.node is None:
            return
        maker = self.reading.runner.graph.maker
        reached = [port for port in part if maker.get(port.value, -1) < stopped.node]
        self._add(reached, self.reading.arrays(reached))


def parts(ports: Iterable[Port], reading: ValueReader, most: int | None = None) -> Iterator[list[Port]]:
    """Split ports, in order, into parts whose values together do not exceed a size."""
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
    """The size of a dump of these ports, as far as it is known."""
    return sum(reading.nbytes(port) or 0 for port in ports)


@contextmanager
def optimized(runner: GraphRunner) -> Iterator[ValueReader]:
    """Reads from the optimized graph, which is kept in a file while it is in use."""
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
    """The ports whose value still exists, under any of its names."""
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
    """The total size of the parameters."""
    return sum(math.prod(each.dims) * _BYTES[each.data_type] for each in _parameters(model))


def write_parameters(model: Model, output: Output) -> None:
    """Write the parameters of a graph, one after the other: its floats, in the file or beside it.

    Integers among a graph's initializers are shapes, axes and indices, and a single number is a constant of some
    operation; neither is a parameter of the model.
    """
    for each in _parameters(model):
        array = numpy_helper.to_array(each, str(model.folder))
        if name_of(array.dtype) in DTYPES:
            output.add_parameter(EntryKey(parameter_name(each.name), 0, 1), array, Origin())
        else:
            output.budget.leave_out(f"its type {array.dtype} is not written")
