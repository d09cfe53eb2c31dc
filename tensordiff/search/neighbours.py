"""What stands around a row: what its layer was given, the module around it, its parts, what ran before and after.

A parent is the nearest module around that has a row, children are the rows whose parent one is: a dump seldom has
every module. Positions are those of the rows that were given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tensordiff.compare.row import Row


class RowNeighbours(NamedTuple):
    """Positions of rows around one, each list in order."""

    inputs: tuple[int, ...] = ()
    """What the same call of the layer was given; not the row itself."""
    outputs: tuple[int, ...] = ()
    """What else the same call gave."""
    parent: int | None = None
    children: tuple[int, ...] = ()
    previous: int | None = None
    """The output that came before."""
    following: int | None = None


def neighbours_of(rows: Sequence[Row], at: int) -> RowNeighbours:
    """Look around one row."""
    row = rows[at]
    step, place = row.pair.reference.step, _place(row)
    same = [k for k, other in enumerate(rows) if k != at and _place(other) == place]
    firsts = _first_of_each_layer(rows, step)
    layer = row.pair.reference.layer
    return RowNeighbours(
        inputs=tuple(k for k in same if rows[k].is_input),
        outputs=tuple(k for k in same if not rows[k].is_input),
        parent=firsts.get(_parent(layer, firsts)),
        children=tuple(_children(layer, firsts)),
        previous=_output(rows, range(at - 1, -1, -1), place),
        following=_output(rows, range(at + 1, len(rows)), place),
    )  # fmt: skip


def _place(row: Row) -> tuple[str, int, int]:
    entry = row.pair.reference
    return entry.layer, entry.step, entry.call


def _first_of_each_layer(rows: Sequence[Row], step: int) -> dict[str, int]:
    """A row for each layer: its first output, or its first input where it has no other."""
    found: dict[str, int] = {}
    for k, row in enumerate(rows):
        entry = row.pair.reference
        before = found.get(entry.layer)
        if entry.step == step and (before is None or (rows[before].is_input and not row.is_input)):
            found[entry.layer] = k
    return found


def _parent(layer: str, known: dict[str, int]) -> str:
    """The nearest module around that is known; "" where there is none."""
    while layer := layer.rpartition(".")[0]:
        if layer in known:
            return layer
    return ""


def _children(layer: str, known: dict[str, int]) -> Iterator[int]:
    inside = f"{layer}."
    for name, k in known.items():
        if name.startswith(inside) and _parent(name, known) == layer:
            yield k


def _output(rows: Sequence[Row], positions: Iterable[int], place: tuple[str, int, int]) -> int | None:
    """The first output of another layer."""
    return next((k for k in positions if not rows[k].is_input and _place(rows[k]) != place), None)
