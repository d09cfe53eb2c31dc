"""Pairing the operations of two runs, which are named by their number: ``layer/op_03_aten.mm``.

If one side runs one operation more, all later numbers are shifted. So the two sequences are aligned at the least cost,
as edit distance does. The same operation with the same shape costs nothing if its values are alike; other values,
another shape, another operation and an operation without a partner cost more and more. An operation whose output has
another number of elements is not the same operation, whatever its name. An operation that replaces another (gelu for
silu) is paired with it if both got the same inputs: that is where the two sides diverge. Tensors whose heads are
transposed on one side count as alike if their values prove it (``operation_layouts``).

Engines choose the order of independent operations: llama.cpp computes values before keys. So the order is a guess,
which values overrule: operations that were paired with other values, or not at all, are paired with those that hold the
same values, wherever they are. Only then is the rest paired in order.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tensordiff.align.index import Index
from tensordiff.align.operation_layouts import Layouts, Shape, ValueStats, have_similar_stats
from tensordiff.align.views import broadcast
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Entry
from tensordiff.errors import DumpError

_NAME = re.compile(r"(.*)/(op|fn)_(\d+)_([^/]*)", re.DOTALL)
# Costs of an alignment; the two operations of a pair with a cost of 2 or more are cheaper left unpaired.
_UNPAIRED = 1.0
_OTHER_NAME, _OTHER_KIND, _REPLACED, _OTHER_SHAPE, _OTHER_VALUES = 1.2, 1.3, 1.7, 0.9, 0.4
_VIEWS = frozenset({
    "view", "unsafe_view", "reshape", "transpose", "permute", "t", "unsqueeze", "squeeze", "expand", "slice", "select",
    "split", "alias", "detach", "clone",
})  # fmt: skip
"""Operations that compute nothing, or only move data: several of them hold the same values."""
_COPIES = frozenset({"cont", "contiguous", "cpy", "copy", "copy_", "dup", "set_rows"})
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "matmul", "mul_mat", "linear", "gemm"})
_FIRST_OUTPUTS = {"output": "output_0", "output_0": "output"}
"""The port of the only output, and that of the first of several: two engines may differ in which they have."""
_MAX_CELLS = 1 << 22
_MAX_READ = 1 << 16  # elements of an output that are looked at

Group = tuple[str, str, int, int]
"""Canonical layer, kind, step, call."""


@dataclass(frozen=True)
class Operation:
    """One operation or function, with its inputs and outputs."""

    name: str
    number: int
    entries: tuple[Entry, ...]

    @cached_property
    def kind(self) -> str:
        """What it computes, in one vocabulary for all engines: ``product`` for ``aten.mm`` and for ``MUL_MAT``."""
        word = _word(self.name)
        return "product" if word in _PRODUCTS else "view" if word in _VIEWS else word

    @cached_property
    def outputs(self) -> tuple[Entry, ...]:
        """Its outputs; its inputs if no output was written."""
        return tuple(entry for entry in self.entries if not entry.is_input) or self.entries

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """Shapes of the outputs."""
        return _shapes(self.outputs)

    @cached_property
    def stats(self) -> ValueStats:
        """Statistics of the first output."""
        return _stats_of(self.outputs[0])

    @cached_property
    def inputs(self) -> tuple[Entry, ...]:
        """All inputs that were written."""
        return tuple(entry for entry in self.entries if entry.is_input)


def _shapes(entries: Sequence[Entry]) -> tuple[Shape, ...]:
    """Shapes of some entries; empty if a header cannot be read."""
    try:
        return tuple(entry.spec.shape for entry in entries)
    except DumpError:
        return ()


def _stats_of(entry: Entry) -> ValueStats:
    try:
        some: Array = entry.read().reshape(-1)[:_MAX_READ].astype(np.float64)
    except (DumpError, ValueError, TypeError):
        return (0.0, 0.0)
    some = some[np.isfinite(some)]
    return (float(some.mean()), float(np.sqrt((some**2).mean()))) if some.size else (0.0, 0.0)


class OperationName(NamedTuple):
    """The parts of an operation's name: ``layers.0/op_03_aten.mm`` is number 3 of layer ``layers.0``."""

    layer: str
    kind: str
    """``op`` for an operation, ``fn`` for a function of several."""
    number: int
    name: str
    """What the engine calls it: ``aten.mm``."""


def parse_operation(layer: str) -> OperationName | None:
    """Parse the name of an operation; None for any other layer."""
    match = _NAME.fullmatch(layer) if "/" in layer else None
    return None if match is None else OperationName(match[1], match[2], int(match[3]), match[4])


def is_operation(layer: str) -> bool:
    """Whether a layer's name is that of an operation within a layer."""
    return "/" in layer and parse_operation(layer) is not None


def computes(layer: str) -> bool:
    """Whether a layer is an operation that computes something, rather than one that only moves data."""
    parts = parse_operation(layer) if "/" in layer else None  # asked of every entry
    return parts is not None and parts.kind == "op" and _word(parts.name) not in _VIEWS | _COPIES


def operation_name(layer: str) -> str:
    """An operation's name in its engine, such as ``aten.mm``; empty for any other layer."""
    parts = parse_operation(layer)
    return "" if parts is None else parts.name


def layer_of_operation(layer: str) -> str:
    """The layer that an operation is within; empty for any other layer."""
    parts = parse_operation(layer)
    return "" if parts is None else parts.layer


def operation_number(layer: str) -> int:
    """An operation's number within its layer; -1 for any other layer."""
    parts = parse_operation(layer)
    return -1 if parts is None else parts.number


def _word(name: str) -> str:
    return name.removeprefix("aten.").partition(".")[0].lower().lstrip("_")


def pair_operations(reference: Index, candidate: Index) -> Iterator[tuple[Entry, Entry]]:
    """The pairs of two dumps of operations, layer by layer.

    If each dump has the operations of a single layer, those are paired whatever the layer is called: whoever compares
    them says that it is the same layer.
    """
    ours, theirs, layouts = _operations(reference), _operations(candidate), Layouts()
    only = _only_layer(ours), _only_layer(theirs)
    for group, some in ours.items():
        same = group if None in only else (only[1] or "", *group[1:])
        for a, b in _pair_sequences(some, theirs.get(same, []), layouts):
            yield from ((layouts.in_layout(entry, other), other) for entry, other in _pair_ports(a, b, layouts))


def _only_layer(operations: Mapping[Group, list[Operation]]) -> str | None:
    """The layer of all operations; None if they belong to several layers, or there are none."""
    layers = {layer for layer, *_ in operations}
    return layers.pop() if len(layers) == 1 else None


def _operations(index: Index) -> Mapping[Group, list[Operation]]:
    """A dump's operations in execution order, by layer and call."""
    groups: dict[Group, dict[int, tuple[str, list[Entry]]]] = defaultdict(dict)
    for entry in index.dump.entries:
        if (parts := parse_operation(entry.layer)) is not None:
            layer = index.rules.canonical(parts.layer, index.side)
            group = layer, parts.kind, entry.step, entry.call
            groups[group].setdefault(parts.number, (parts.name, []))[1].append(entry)
    return {
        group: [Operation(name, number, tuple(entries)) for number, (name, entries) in sorted(numbered.items())]
        for group, numbered in groups.items()
    }


def _pair_ports(ours: Operation, theirs: Operation, layouts: Layouts) -> Iterator[tuple[Entry, Entry]]:
    """Ports of the same name; for two different operations, only the inputs that may be the same."""
    ports = {entry.port: entry for entry in theirs.entries}
    for entry in ours.entries:
        other = ports.get(entry.port) or ports.get(_FIRST_OUTPUTS.get(entry.port, ""))
        if other is not None and (not entry.is_input or _may_be_same_input(entry, other, (ours, theirs), layouts)):
            yield entry, other


def _may_be_same_input(entry: Entry, other: Entry, both: tuple[Operation, Operation], layouts: Layouts) -> bool:
    """Whether two inputs may be compared: operations with equal outputs may have got different inputs."""
    ours, theirs = both
    if ours.name == theirs.name:
        return _may_be_viewed(_shapes([entry]), _shapes([other]))
    if layouts.is_same(entry, other):
        return True
    is_proven = _is_proven(ours, theirs, layouts)
    return not is_proven and ours.kind == theirs.kind and entry.spec.shape == other.spec.shape


def _pair_sequences(
    ours: Sequence[Operation], theirs: Sequence[Operation], layouts: Layouts
) -> list[tuple[Operation, Operation]]:
    """The pairs of two sequences: by their order, unless values say otherwise; in the order of the first."""
    pairs = align_operations(ours, theirs, layouts)
    # A view that is paired with a computation is kept only if no computation with the same values is found.
    proven = [(a, b) for a, b in pairs if (a.kind == "view") == (b.kind == "view") and _is_proven(a, b, layouts)]
    if len(ours) * len(theirs) <= _MAX_CELLS:
        proven += _out_of_order(_without(ours, proven, 0), _without(theirs, proven, 1), layouts)
        settled = [{pair[side].number for pair in proven} for side in (0, 1)]
        guessed = [(a, b) for a, b in pairs if a.number not in settled[0] and b.number not in settled[1]]
        pairs = [*proven, *guessed]
        pairs += align_operations(_without(ours, pairs, 0), _without(theirs, pairs, 1), layouts)
        pairs += _last_operations(ours, theirs, pairs)
    return sorted(pairs, key=lambda pair: pair[0].number)


def _without(
    operations: Sequence[Operation], pairs: Sequence[tuple[Operation, Operation]], side: int
) -> list[Operation]:
    """The operations of a side that are in none of the pairs."""
    paired = {pair[side].number for pair in pairs}
    return [operation for operation in operations if operation.number not in paired]


def _out_of_order(
    ours: Sequence[Operation], theirs: Sequence[Operation], layouts: Layouts
) -> Iterator[tuple[Operation, Operation]]:
    """Pairs of operations with equal output values, wherever they stand; a view is no partner of a computation."""
    free = list(ours)
    for b in theirs:
        fitting = (a for a in free if a.kind == b.kind or "view" not in (a.kind, b.kind))
        if same := [a for a in fitting if _is_proven(a, b, layouts)]:
            nearest = min(same, key=lambda a: (a.name != b.name, a.kind != b.kind, abs(a.number - b.number)))
            free.remove(nearest)
            yield nearest, b


def _last_operations(
    ours: Sequence[Operation], theirs: Sequence[Operation], pairs: Sequence[tuple[Operation, Operation]]
) -> Iterator[tuple[Operation, Operation]]:
    """Pair the last operations that compute something, if left: both give the layer's output, right or wrong."""
    a, b = (next((one for one in reversed(side) if one.kind != "view"), None) for side in (ours, theirs))
    if a is None or b is None or (a.name != b.name and not _are_equivalent(a, b)):
        return
    if not any(a.number == one.number or b.number == other.number for one, other in pairs):
        yield a, b


def _are_equivalent(ours: Operation, theirs: Operation) -> bool:
    """Whether operations of two engines are of one kind and size: torch has a batch of one where llama.cpp has none."""
    sizes = ([[size for size in shape if size != 1] for shape in one.shapes] for one in (ours, theirs))
    return ours.kind == theirs.kind and next(sizes) == next(sizes)


def _is_proven(ours: Operation, theirs: Operation, layouts: Layouts) -> bool:
    """Whether two operations gave the same output."""
    return layouts.is_same(ours.outputs[0], theirs.outputs[0])


def align_operations(
    ours: Sequence[Operation], theirs: Sequence[Operation], layouts: Layouts
) -> list[tuple[Operation, Operation]]:
    """The pairs of the cheapest alignment of two sequences."""
    if len(ours) * len(theirs) > _MAX_CELLS:
        return [pair for pair in zip(ours, theirs, strict=False) if cost(*pair, layouts) < _UNPAIRED]
    # least[i][j]: the least cost of aligning the first i with the first j.
    least = np.zeros((len(ours) + 1, len(theirs) + 1))
    least[:, 0], least[0, :] = np.arange(len(ours) + 1) * _UNPAIRED, np.arange(len(theirs) + 1) * _UNPAIRED
    for i, a in enumerate(ours, 1):
        for j, b in enumerate(theirs, 1):
            alone = min(least[i - 1, j], least[i, j - 1]) + _UNPAIRED
            least[i, j] = min(alone, least[i - 1, j - 1] + cost(a, b, layouts))
    return _trace_back(least, ours, theirs, layouts)


def _trace_back(
    least: Array, ours: Sequence[Operation], theirs: Sequence[Operation], layouts: Layouts
) -> list[tuple[Operation, Operation]]:
    """The pairs along the cheapest path, from its end."""
    pairs: list[tuple[Operation, Operation]] = []
    i, j = len(ours), len(theirs)
    while i and j:
        if least[i, j] == least[i - 1, j - 1] + cost(ours[i - 1], theirs[j - 1], layouts):
            i, j = i - 1, j - 1
            pairs.append((ours[i], theirs[j]))
        elif least[i, j] == least[i - 1, j] + _UNPAIRED:
            i -= 1
        else:
            j -= 1
    return pairs[::-1]


def cost(ours: Operation, theirs: Operation, layouts: Layouts) -> float:
    """The cost of pairing two operations; from 2 up they are left unpaired instead."""
    shapes = 0.0 if ours.shapes == theirs.shapes else _OTHER_SHAPE
    if shapes and not _may_be_viewed(ours.shapes, theirs.shapes):
        return 3.0
    other = _OTHER_NAME if ours.kind == theirs.kind else _OTHER_KIND
    if shapes and _is_transposed(ours, theirs, layouts):
        return 0.0 if ours.name == theirs.name else other
    if ours.name != theirs.name:
        # Another name for the same operation needs the same shape and values; a replacement needs the same inputs.
        # Similar statistics are not enough: all normalized tensors have them.
        if shapes:
            return 3.0
        return (
            other
            if _is_proven(ours, theirs, layouts)
            else _REPLACED
            if _had_same_inputs(ours, theirs, layouts)
            else 3.0
        )
    if shapes:
        return shapes
    return 0.0 if ours.stats == theirs.stats or have_similar_stats(ours.stats, theirs.stats) else _OTHER_VALUES


def _may_be_viewed(ours: Sequence[Shape], theirs: Sequence[Shape]) -> bool:
    """Whether some view may turn the first of some shapes into the first of others, by their sizes."""
    if not ours or not theirs:
        return True  # measuring reports it
    return math.prod(ours[0]) == math.prod(theirs[0]) or broadcast(ours[0], theirs[0]) is not None


def _is_transposed(ours: Operation, theirs: Operation, layouts: Layouts) -> bool:
    """Whether the outputs of two operations are the same in another layout."""
    if len(ours.outputs) != len(theirs.outputs):
        return False
    try:
        return all(layouts.view(a, b) is not None for a, b in zip(ours.outputs, theirs.outputs, strict=True))
    except DumpError:
        return False


def _had_same_inputs(ours: Operation, theirs: Operation, layouts: Layouts) -> bool:
    """Whether two operations got the same number of inputs, with the same values."""
    mine, others = ours.inputs, theirs.inputs
    return bool(mine) and len(mine) == len(others) and all(map(layouts.is_same, mine, others))
