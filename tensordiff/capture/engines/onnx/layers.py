"""The modules that a graph was exported from, as calls: the nodes of each, and how they nest.

A new call of a module begins where its nodes read a value that left the module and passed through others: a single call
cannot do that. For torch's own layers, reading a weight a second time in the same way also shows it, and the older
exporter marks it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tensordiff.capture.engines.onnx.graph import Graph, Kind
from tensordiff.capture.engines.onnx.scopes import Scope
from tensordiff.capture.process.layers import ROOT
from tensordiff.dump.model import CallKey, Origin

_ONCE = tuple(f"torch.nn.modules.{part}." for part in ("linear", "conv", "sparse", "normalization", "batchnorm"))
"""The parts of torch with layers that read each of their weights once a call."""


@dataclass(frozen=True, eq=False)
class Call:
    """One call of one module; in a graph that records no modules, one node."""

    layer: str
    number: int
    nodes: frozenset[int]
    depth: int
    """The number of modules around it."""
    parts: tuple[Call, ...] = ()
    """The calls within it, in the order they end."""
    origin: Origin = field(default_factory=Origin)
    is_node: bool = False

    @property
    def last(self) -> int:
        """The node that ends it."""
        return max(self.nodes, default=-1)

    def walk(self) -> Iterator[Call]:
        """The call and all calls within it, a module before its parts."""
        yield self
        for part in self.parts:
            yield from part.walk()

    @property
    def key(self) -> CallKey:
        """Identifies the call; a graph is run once, in step 0."""
        return CallKey(self.layer, 0, self.number)


def find_calls(graph: Graph, found: Sequence[Scope]) -> Call:
    """The whole model as a call, with all calls in it."""
    if any(scope.modules for scope in found):
        return _CallFinder(graph, found).root()
    return _by_node(graph, found)


def with_neighbours(graph: Graph, found: Sequence[Scope]) -> list[Scope]:
    """Fill in scopes.

    A node that does not record where it comes from gets the module that all nodes around it share.
    """
    scopes = list(found)
    for k, scope in enumerate(found):
        if not scope.is_known:
            makers = [graph.maker[name] for name in graph.data_reads(k) if name in graph.maker]
            readers = [reader for name in graph.nodes[k].output for reader in graph.readers.get(name, ())]
            near = [[scopes[other] for other in others if scopes[other].is_known] for others in (makers, readers)]
            scopes[k] = _common(scope, near[0] + near[1]) if all(near) else scope
    return scopes


def _common(scope: Scope, near: Sequence[Scope]) -> Scope:
    """A scope of the modules that all the others have in common."""
    depth = 0
    while all(len(one.modules) > depth for one in near) and len({one.modules[depth] for one in near}) == 1:
        depth += 1
    one = near[0]
    return scope._replace(
        modules=one.modules[:depth], classes=one.classes[:depth], marks=one.marks[:depth], is_known=True
    )


class _CallFinder:
    """Groups nodes into calls, from the outermost module inward: a part belongs to one call of its parent."""

    def __init__(self, graph: Graph, found: Sequence[Scope]) -> None:
        self._graph, self._scopes = graph, found
        self._counts: dict[str, int] = {}

    def root(self) -> Call:
        """The call of the whole model, with all nodes."""
        everything = range(len(self._scopes))
        classes = (scope.root_class for scope in self._scopes)
        origin = Origin(_class_name(next(filter(None, classes), None)))
        return Call(ROOT, 1, frozenset(everything), 0, self._parts(everything, 0), origin)

    def _parts(self, nodes: Sequence[int], depth: int) -> tuple[Call, ...]:
        """The calls, at one depth of nesting, among some nodes."""
        of_module: dict[str, list[int]] = {}
        for k in nodes:
            if len(self._scopes[k].modules) > depth:
                of_module.setdefault(self._scopes[k].modules[depth], []).append(k)
        runs = [(name, run) for name, found in of_module.items() for run in self._runs(found, depth)]
        return tuple(self._call(name, run, depth) for name, run in sorted(runs, key=lambda one: one[1][-1]))

    def _call(self, name: str, nodes: Sequence[int], depth: int) -> Call:
        number = self._counts[name] = self._counts.get(name, 0) + 1
        parts = self._parts(nodes, depth + 1)
        return Call(f"{ROOT}.{name}", number, frozenset(nodes), depth + 1, parts, self._origin(nodes, depth))

    def _origin(self, nodes: Sequence[int], depth: int) -> Origin:
        """The class, and the line of the module's own code that made the last of its nodes."""
        here = [self._scopes[k] for k in nodes]
        kind = next((scope.classes[depth] for scope in here if scope.classes[depth]), None)
        own = [scope for scope in here if len(scope.modules) == depth + 1 and scope.file is not None]
        return Origin(_class_name(kind), own[-1].file, own[-1].line) if own else Origin(_class_name(kind))

    def _runs(self, nodes: list[int], depth: int) -> Iterator[list[int]]:
        """Split a module's nodes into its calls."""
        run: list[int] = []
        away = _OutsideFlow(self._graph)
        for k in range(nodes[0], nodes[-1] + 1):
            if not self._is_of(k, nodes[0], depth):
                away.passes(k)
                continue
            if run and (away.returns(k) or self._is_marked(run[-1], k, depth) or self._reads_again(run, k, depth)):
                yield run
                run, away = [], _OutsideFlow(self._graph)
            run.append(k)
            away.leaves(k)
        yield run

    def _is_of(self, k: int, first: int, depth: int) -> bool:
        """Whether a node is in the same module as another."""
        return self._scopes[k].modules[: depth + 1] == self._scopes[first].modules[: depth + 1]

    def _is_marked(self, before: int, now: int, depth: int) -> bool:
        marks = self._scopes[before].marks, self._scopes[now].marks
        return marks[0][depth] != marks[1][depth]

    def _reads_again(self, run: Sequence[int], k: int, depth: int) -> bool:
        kind = self._scopes[k].classes[depth]
        if kind is None or not kind.startswith(_ONCE):
            return False
        weights = self._weights(k)
        return any(weights & self._weights(other) for other in run)

    def _weights(self, k: int) -> set[tuple[str, str]]:
        """The constants that a node reads and no node makes, each with the node's operation."""
        graph = self._graph
        names = (name for name in graph.reads[k] if name not in graph.maker and graph.kind(name) is Kind.CONSTANT)
        return {(graph.nodes[k].op_type, name) for name in names}


class _OutsideFlow:
    """Tracks the values that left a call, and what was computed from them outside."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._made: set[str] = set()
        self._passed: set[str] = set()

    def leaves(self, k: int) -> None:
        """Note the outputs of a node of the call. Lengths and indices do not count: exporters share those freely."""
        self._made.update(name for name in self._graph.nodes[k].output if self._graph.kind(name) is Kind.DATA)

    def passes(self, k: int) -> None:
        """Note a node outside the call, which may read a value that left it."""
        names = self._graph.reads[k]
        if not self._made.isdisjoint(names) or not self._passed.isdisjoint(names):
            self._passed.update(self._graph.nodes[k].output)

    def returns(self, k: int) -> bool:
        """Whether a node reads a value that was computed outside from the call's values."""
        return not self._passed.isdisjoint(self._graph.reads[k])


def _by_node(graph: Graph, found: Sequence[Scope]) -> Call:
    """The call of a graph that records no modules: one call for each node whose outputs are not constants."""
    counts, parts = {ROOT: 1}, list[Call]()
    for k, node in enumerate(graph.nodes):
        if any(graph.is_activation(name) for name in node.output):
            name = node.name or next(filter(None, node.output))
            counts[name] = counts.get(name, 0) + 1
            origin = Origin(node.op_type, found[k].file, found[k].line)
            parts.append(Call(name, counts[name], frozenset([k]), 1, (), origin, is_node=True))
    return Call(ROOT, 1, frozenset(range(len(graph.nodes))), 0, tuple(parts))


def _class_name(path: str | None) -> str | None:
    """The name of a class as dumps have it, without its module."""
    return None if path is None else path.rpartition(".")[2]
