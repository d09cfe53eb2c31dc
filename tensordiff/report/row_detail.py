"""The error of one pair as a small picture: the largest |error| in each cell of a grid laid over the tensor.

The tensor is seen as rows (all axes but the last, flattened: tokens, mostly) by columns (the last axis: channels).

A closer look at one row: worst elements, picture, kind of error, what its layer was given, and its source.
"""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tensordiff.capture.provenance import provenance_of
from tensordiff.compare.hint import Hint
from tensordiff.compare.look.elements import Element
from tensordiff.compare.look.heat import Plane
from tensordiff.compare.look.heat import heat as heat_of
from tensordiff.compare.measure.dispatch import as_reals
from tensordiff.compare.row import Row, values_of
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Entry, Origin
from tensordiff.errors import printable
from tensordiff.report.compared import Compared
from tensordiff.search.outcome import Outcome

ROWS, COLUMNS = 48, 96


class Heat(NamedTuple):
    """A grid over a tensor."""

    rows: int
    """How many rows of the tensor there are."""
    columns: int
    cells: tuple[tuple[float, ...], ...]
    """The largest |error| of each cell; NaN where one side is NaN and the other is not the same."""


def heat(ref: Array, cand: Array, most: tuple[int, int] = (ROWS, COLUMNS)) -> Heat | None:
    """The picture of a pair of one shape; None of an empty one."""
    if not ref.size:
        return None
    ref, cand = (_flat(side) for side in as_reals(ref, cand))
    rows, columns = ref.shape
    plane = Plane(0, 1, _cuts(rows, most[0]), _cuts(columns, most[1]))
    (cells,) = deque(heat_of(ref, cand, plane), maxlen=1)
    return Heat(rows, columns, tuple(map(tuple, cells.tolist())))


def _flat(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1] if array.ndim else 1)


def _cuts(length: int, most: int) -> tuple[int, ...]:
    count = min(length, most)
    return tuple(length * k // count for k in range(count + 1))


WORST = 10
_REPLAYED = ("hf", "py")
"""Kinds of source of which one layer can be run alone."""


@dataclass(frozen=True)
class Close:
    """One row, closely."""

    row: Row
    hint: Hint | None
    worst: tuple[Element, ...]
    heat: Heat | None
    inputs: tuple[Row, ...]
    """What the same layer was given, as far as it was dumped."""
    origins: tuple[str, str]
    """The module and its place in the source on both sides; empty where a dump does not say."""
    repro: str
    """The command that makes a repro of this layer alone; empty where no source is known to run it again."""


def close_up(session: Compared, outcome: Outcome, row: Row) -> Close:
    """Look at one row; reads the pair again."""
    sides = values_of(row.pair) if row.diff is not None else None
    return Close(
        row,
        session.hint(row) if _is_wrong(row) else None,
        tuple(session.worst(row, WORST)),
        heat(*sides) if sides else None,
        tuple(_inputs(outcome.rows, row)),
        (_origin(row.pair.reference), _origin(row.pair.candidate)),
        _repro(session, row),
    )


def _is_wrong(row: Row) -> bool:
    return row.verdict.name in ("drifts", "diverges")


def _inputs(rows: Sequence[Row], row: Row) -> list[Row]:
    if row.is_input:
        return []
    place = _place(row)
    return [other for other in rows if other.is_input and _place(other) == place]


def _place(row: Row) -> tuple[str, int, int]:
    entry = row.pair.reference
    return entry.layer, entry.step, entry.call


def _repro(session: Compared, row: Row) -> str:
    """The candidate's layer on the reference's inputs, where both call it the same; else on its own."""
    made = provenance_of(session.candidate)
    if made is None or made.source.kind not in _REPLAYED:
        return ""
    ours, theirs = row.pair.reference, row.pair.candidate
    words = ["tensordiff", "replay", str(session.candidate.path), theirs.layer]
    if ours.layer == theirs.layer:
        words = ["tensordiff", "replay", str(session.reference.path), ours.layer, "--source", str(made.source)]
    words += ["--step", str(ours.step)] * bool(ours.step) + ["--call", str(ours.call)] * (ours.call != 1)
    return printable(shlex.join([*words, "-o", "repro"]))


def _origin(entry: Entry) -> str:
    origin: Origin = entry.origin or Origin()
    where = f"{origin.source_file}:{origin.source_line}" if origin.source_file else ""
    return printable(", ".join(filter(None, (origin.module_class, where))))
