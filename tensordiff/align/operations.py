"""Pairing the operations of two runs, which are named by their number: ``layer/op_03_aten.mm``.

If one side runs one operation more, all later numbers are shifted. So the two sequences are aligned at the least
cost (as edit distance does): the same operation with the same shape costs nothing if its values are alike;
other values, another shape, another operation and an operation without partner cost more and more. An operation
in the place of another (gelu for silu) is paired with it where both got the same inputs: there the two sides part.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tensordiff.align.index import Index
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Entry
from tensordiff.errors import DumpError

_NAME = re.compile(r"(.*)/(op|fn)_(\d+)_([^/]*)", re.DOTALL)
_UNPAIRED = 1.0
_OTHER_OP, _REPLACED, _OTHER_SHAPE, _OTHER_VALUES = 1.3, 1.7, 0.9, 0.4
_MAX_CELLS = 1 << 22
_MAX_READ = 1 << 16  # elements of an output that are looked at

ValueStats = tuple[float, float]
"""Mean and RMS of a tensor."""
Group = tuple[str, str, int, int]
"""Canonical layer, kind, step, call."""


@dataclass(frozen=True)
class Operation:
    """One operation or function, with its inputs and outputs."""

    name: str
    number: int
    entries: tuple[Entry, ...]

    @cached_property
    def outputs(self) -> tuple[Entry, ...]:
        """Its outputs; its inputs, where no output was written."""
        return tuple(entry for entry in self.entries if not entry.is_input) or self.entries

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the outputs."""
        try:
            return tuple(entry.spec.shape for entry in self.outputs)
        except DumpError:
            return ()

    @cached_property
    def stats(self) -> ValueStats:
        """Statistics of the first output."""
        return _stats_of(self.outputs[0])

    @cached_property
    def inputs(self) -> tuple[ValueStats, ...]:
        """Statistics of all inputs that were written."""
        return tuple(_stats_of(entry) for entry in self.entries if entry.is_input)


def _stats_of(entry: Entry) -> ValueStats:
    try:
        some: Array = entry.read().reshape(-1)[:_MAX_READ].astype(np.float64)
    except (DumpError, ValueError, TypeError):
        return (0.0, 0.0)
    some = some[np.isfinite(some)]
    return (float(some.mean()), float(np.sqrt((some**2).mean()))) if some.size else (0.0, 0.0)


def is_operation(layer: str) -> bool:
    """Whether a layer's name is that of an operation within a layer."""
    return _NAME.fullmatch(layer) is not None


def pair_operations(reference: Index, candidate: Index) -> Iterator[tuple[Entry, Entry]]:
    """The pairs of two dumps of operations, layer by layer."""
    theirs = _operations(candidate)
    for group, ours in _operations(reference).items():
        for a, b in align_operations(ours, theirs.get(group, [])):
            yield from _ports(a, b)


def _operations(index: Index) -> Mapping[Group, list[Operation]]:
    """A dump's operations in execution order, by layer and call."""
    groups: dict[Group, dict[int, tuple[str, list[Entry]]]] = defaultdict(dict)
    for entry in index.dump.entries:
        if "/" in entry.layer and (parts := _NAME.fullmatch(entry.layer)) is not None:
            layer = index.rules.canonical(parts[1], index.side)
            group = layer, parts[2], entry.step, entry.call
            groups[group].setdefault(int(parts[3]), (parts[4], []))[1].append(entry)
    return {
        group: [Operation(name, number, tuple(entries)) for number, (name, entries) in sorted(numbered.items())]
        for group, numbered in groups.items()
    }


def _ports(ours: Operation, theirs: Operation) -> Iterator[tuple[Entry, Entry]]:
    """Ports of the same name; of two different operations only the outputs."""
    ports = {entry.port: entry for entry in theirs.entries}
    for entry in ours.entries:
        other = ports.get(entry.port) or (ports.get("output_0") if entry.port == "output" else None)
        if other is not None and (ours.name == theirs.name or not entry.is_input):
            yield entry, other


def align_operations(ours: Sequence[Operation], theirs: Sequence[Operation]) -> list[tuple[Operation, Operation]]:
    """The pairs of the alignment of two sequences that costs least."""
    if len(ours) * len(theirs) > _MAX_CELLS:
        return [pair for pair in zip(ours, theirs, strict=False) if cost(*pair) < _UNPAIRED]
    # least[i][j]: the least cost of aligning the first i with the first j.
    least = np.zeros((len(ours) + 1, len(theirs) + 1))
    least[:, 0], least[0, :] = np.arange(len(ours) + 1) * _UNPAIRED, np.arange(len(theirs) + 1) * _UNPAIRED
    for i, a in enumerate(ours, 1):
        for j, b in enumerate(theirs, 1):
            alone = min(least[i - 1, j], least[i, j - 1]) + _UNPAIRED
            least[i, j] = min(alone, least[i - 1, j - 1] + cost(a, b))
    return _trace_back(least, ours, theirs)


def _trace_back(
    least: Array, ours: Sequence[Operation], theirs: Sequence[Operation]
) -> list[tuple[Operation, Operation]]:
    """The pairs along the cheapest path, from its end."""
    pairs: list[tuple[Operation, Operation]] = []
    i, j = len(ours), len(theirs)
    while i and j:
        if least[i, j] == least[i - 1, j - 1] + cost(ours[i - 1], theirs[j - 1]):
            i, j = i - 1, j - 1
            pairs.append((ours[i], theirs[j]))
        elif least[i, j] == least[i - 1, j] + _UNPAIRED:
            i -= 1
        else:
            j -= 1
    return pairs[::-1]


def cost(ours: Operation, theirs: Operation) -> float:
    """The cost of pairing two operations; from 2 up they are left unpaired instead."""
    shapes = 0.0 if ours.shapes == theirs.shapes else _OTHER_SHAPE
    if ours.name != theirs.name:
        # Another name for the same operation needs the same shape and values; another operation in the place of one
        # needs the same inputs.
        if shapes:
            return 3.0
        return _OTHER_OP if _alike(ours.stats, theirs.stats) else _REPLACED if _have_alike_inputs(ours, theirs) else 3.0
    if shapes:
        return shapes
    return 0.0 if _alike(ours.stats, theirs.stats) else _OTHER_VALUES


def _have_alike_inputs(ours: Operation, theirs: Operation) -> bool:
    """Whether two operations got the same number of inputs, with alike values."""
    mine, others = ours.inputs, theirs.inputs
    return bool(mine) and len(mine) == len(others) and all(map(_alike, mine, others))


def _alike(ours: ValueStats, theirs: ValueStats) -> bool:
    """Whether two tensors could be the same, roughly."""
    (mean_a, rms_a), (mean_b, rms_b) = ours, theirs
    size = max(rms_a, rms_b, 1e-30)
    return abs(rms_a - rms_b) <= 0.05 * size and abs(mean_a - mean_b) <= 0.05 * size
