"""Pairing the operations of two runs, which are named by their number: ``layer/op_03_aten.mm``.

Where one side runs an operation more, every number after it is another's. So the two sequences are laid side by
side at the least cost: the same operation giving the same shape costs nothing, the more so where the values are
alike; another operation, another shape, and an operation that only one side runs cost more and more. An operation in
the place of another (gelu for silu) is paired with it where both were given the same: there the two sides part.
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
_ALONE = 1.0
_OTHER_OP, _INSTEAD, _OTHER_SHAPE, _OTHER_VALUES = 1.3, 1.7, 0.9, 0.4
_MOST_CELLS = 1 << 22
_READ = 1 << 16  # elements of an output that are looked at

ValueStats = tuple[float, float]
"""Mean and root mean square of some values."""
Group = tuple[str, str, int, int]
"""Canonical layer, kind, step, call."""


@dataclass(frozen=True)
class Operation:
    """One operation or function, with all that it was given and gave."""

    name: str
    number: int
    entries: tuple[Entry, ...]

    @cached_property
    def outputs(self) -> tuple[Entry, ...]:
        """What it gave; what it was given, where it gave nothing that was written."""
        return tuple(entry for entry in self.entries if not entry.is_input) or self.entries

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of what it gave."""
        try:
            return tuple(entry.spec.shape for entry in self.outputs)
        except DumpError:
            return ()

    @cached_property
    def sketch(self) -> ValueStats:
        """Of what it gave."""
        return _sketch(self.outputs[0])

    @cached_property
    def given(self) -> tuple[ValueStats, ...]:
        """Of all that it was given, as far as that was written."""
        return tuple(_sketch(entry) for entry in self.entries if entry.is_input)


def _sketch(entry: Entry) -> ValueStats:
    try:
        some: Array = entry.read().reshape(-1)[:_READ].astype(np.float64)
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
        for a, b in side_by_side(ours, theirs.get(group, [])):
            yield from _ports(a, b)


def _operations(index: Index) -> Mapping[Group, list[Operation]]:
    """A dump's operations in the order they ran, by layer and call."""
    found: dict[Group, dict[int, tuple[str, list[Entry]]]] = defaultdict(dict)
    for entry in index.dump.entries:
        if "/" in entry.layer and (parts := _NAME.fullmatch(entry.layer)) is not None:
            layer = index.rules.canonical(parts[1], index.side)
            group = layer, parts[2], entry.step, entry.call
            found[group].setdefault(int(parts[3]), (parts[4], []))[1].append(entry)
    return {
        group: [Operation(name, number, tuple(entries)) for number, (name, entries) in sorted(numbered.items())]
        for group, numbered in found.items()
    }


def _ports(ours: Operation, theirs: Operation) -> Iterator[tuple[Entry, Entry]]:
    """Ports of the same name. Of two different operations only what they gave is the same thing."""
    ports = {entry.port: entry for entry in theirs.entries}
    for entry in ours.entries:
        other = ports.get(entry.port) or (ports.get("output_0") if entry.port == "output" else None)
        if other is not None and (ours.name == theirs.name or not entry.is_input):
            yield entry, other


def side_by_side(ours: Sequence[Operation], theirs: Sequence[Operation]) -> list[tuple[Operation, Operation]]:
    """The least costly way to lay two sequences side by side."""
    if len(ours) * len(theirs) > _MOST_CELLS:
        return [pair for pair in zip(ours, theirs, strict=False) if cost(*pair) < _ALONE]
    # least[i][j]: what laying the first i beside the first j costs.
    least = np.zeros((len(ours) + 1, len(theirs) + 1))
    least[:, 0], least[0, :] = np.arange(len(ours) + 1) * _ALONE, np.arange(len(theirs) + 1) * _ALONE
    for i, a in enumerate(ours, 1):
        for j, b in enumerate(theirs, 1):
            alone = min(least[i - 1, j], least[i, j - 1]) + _ALONE
            least[i, j] = min(alone, least[i - 1, j - 1] + cost(a, b))
    return _traced(least, ours, theirs)


def _traced(least: Array, ours: Sequence[Operation], theirs: Sequence[Operation]) -> list[tuple[Operation, Operation]]:
    """Back along the least costly way."""
    found: list[tuple[Operation, Operation]] = []
    i, j = len(ours), len(theirs)
    while i and j:
        if least[i, j] == least[i - 1, j - 1] + cost(ours[i - 1], theirs[j - 1]):
            i, j = i - 1, j - 1
            found.append((ours[i], theirs[j]))
        elif least[i, j] == least[i - 1, j] + _ALONE:
            i -= 1
        else:
            j -= 1
    return found[::-1]


def cost(ours: Operation, theirs: Operation) -> float:
    """What it costs to hold two operations to be the same; from 2 up they rather stand alone."""
    shapes = 0.0 if ours.shapes == theirs.shapes else _OTHER_SHAPE
    if ours.name != theirs.name:
        # Another name for the same thing is believed only where shape and values say so; another operation in the
        # place of one only where both were given the same.
        if shapes:
            return 3.0
        return _OTHER_OP if _alike(ours.sketch, theirs.sketch) else _INSTEAD if _were_given_alike(ours, theirs) else 3.0
    if shapes:
        return shapes
    return 0.0 if _alike(ours.sketch, theirs.sketch) else _OTHER_VALUES


def _were_given_alike(ours: Operation, theirs: Operation) -> bool:
    """Whether two operations were given as many values, and those alike."""
    mine, others = ours.given, theirs.given
    return bool(mine) and len(mine) == len(others) and all(map(_alike, mine, others))


def _alike(ours: ValueStats, theirs: ValueStats) -> bool:
    """Whether two values could be the same, roughly."""
    (mean_a, rms_a), (mean_b, rms_b) = ours, theirs
    size = max(rms_a, rms_b, 1e-30)
    return abs(rms_a - rms_b) <= 0.05 * size and abs(mean_a - mean_b) <= 0.05 * size
