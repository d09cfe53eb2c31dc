"""The neighbours of a row: inputs and outputs of the same call, parent, children, and the rows before and after.

Dumps seldom hold every module, so the parent is the nearest enclosing module that has a row, and the children are the
rows whose parent this row is. Neighbours are given as positions in the list of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tensordiff.compare.row import Row
from tensordiff.dump.model import CallKey


class RowNeighbours(NamedTuple):
    """Positions of the rows around a row, each group in order."""

    inputs: tuple[int, ...] = ()
    """Other inputs of the same call of the layer."""
    outputs: tuple[int, ...] = ()
    """Other outputs of the same call."""
    parent: int | None = None
    children: tuple[int, ...] = ()
    previous: int | None = None
    """The last output of another call before this row."""
    following: int | None = None
    """The first output of another call after this row."""


def neighbours_of(rows: Sequence[Row], at: int) -> RowNeighbours:
    """The neighbours of the row at a position."""
    row = rows[at]
    step, call = row.pair.reference.step, row.pair.reference.call_key
    same = [k for k, other in enumerate(rows) if k != at and other.pair.reference.call_key == call]
    layer = row.pair.reference.layer
    firsts = _first_of_each_layer(rows, step, layer)
    return RowNeighbours(
        inputs=tuple(k for k in same if rows[k].is_input),
        outputs=tuple(k for k in same if not rows[k].is_input),
        parent=firsts.get(_parent(layer, firsts)),
        children=tuple(_children(layer, firsts)),
        previous=_output(rows, range(at - 1, -1, -1), call),
        following=_output(rows, range(at + 1, len(rows)), call),
    )  # fmt: skip


def _first_of_each_layer(rows: Sequence[Row], step: int, layer: str) -> dict[str, int]:
    """The position of the first output, or of the first input where there is no output, of a layer and of each around
    or within it. Of all layers, among a million rows, it would keep the app waiting.
    """
    first: dict[str, int] = {}
    inside, around = f"{layer}.", {layer, *(layer[:at] for at, letter in enumerate(layer) if letter == ".")}
    for k, row in enumerate(rows):
        entry = row.pair.reference
        if entry.step == step and (entry.layer in around or entry.layer.startswith(inside)):
            before = first.get(entry.layer)
            if before is None or (rows[before].is_input and not row.is_input):
                first[entry.layer] = k
    return first


def _parent(layer: str, known: dict[str, int]) -> str:
    """The nearest enclosing module that has a row; "" if there is none."""
    while layer := layer.rpartition(".")[0]:
        if layer in known:
            return layer
    return ""


def _children(layer: str, known: dict[str, int]) -> Iterator[int]:
    inside = f"{layer}."
    for name, k in known.items():
        if name.startswith(inside) and _parent(name, known) == layer:
            yield k


def _output(rows: Sequence[Row], positions: Iterable[int], call: CallKey) -> int | None:
    """The first output, among these positions, that belongs to another call."""
    outputs = (k for k in positions if not rows[k].is_input)
    return next((k for k in outputs if rows[k].pair.reference.call_key != call), None)
