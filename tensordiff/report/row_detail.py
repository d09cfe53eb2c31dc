"""The details of one row: largest errors, heat map, kind of error, inputs of its layer, source code."""

from __future__ import annotations

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
from tensordiff.search.outcome import Outcome
from tensordiff.session.session import Session
from tensordiff.util.shell_line import shell_line

ROWS, COLUMNS = 48, 96
"""The largest grid of a heat map."""
WORST = 10
"""The number of largest errors listed."""
_REPLAYED = ("hf", "py")
"""Kinds of source whose layers can be run alone."""


class Heat(NamedTuple):
    """The largest |error| in each cell of a grid over a tensor.

    The tensor is seen as rows (all axes but the last, flattened: mostly tokens) by columns (the last axis: channels).
    """

    rows: int
    """Rows and columns of the tensor, not of the grid."""
    columns: int
    cells: tuple[tuple[float, ...], ...]
    """Row by row; NaN if one side is NaN and the other is not."""


@dataclass(frozen=True)
class RowDetail:
    """What a report says about one row beyond its line in the table."""

    row: Row
    hint: Hint | None
    weights: str | None
    """Whether both sides have the same weights for the layer, if both dumps hold them."""
    worst: tuple[Element, ...]
    heat: Heat | None
    inputs: tuple[Row, ...]
    """The dumped inputs of the same call of the layer."""
    origins: tuple[str, str]
    """Module class and source line of each side; empty if a dump does not record them."""
    repro: str
    """A command that reproduces the error with this layer alone; empty if there is none."""


def element_cells(element: Element) -> tuple[str, ...]:
    """An element as cells of a table: its error, both values, and its index."""
    return (
        f"{element.error:.5g}", f"{element.reference:.8g}", f"{element.candidate:.8g}", str(list(element.index)),
    )  # fmt: skip


def row_detail(session: Session, outcome: Outcome, row: Row) -> RowDetail:
    """Collect the details of a row; reads its pair again."""
    sides = values_of(row.pair) if row.diff is not None else None
    return RowDetail(
        row=row,
        hint=session.hint(row) if _is_wrong(row) else None,
        weights=_weights(session, row) if _is_wrong(row) else None,
        worst=tuple(session.worst(row, WORST)),
        heat=heat(*sides) if sides else None,
        inputs=tuple(_inputs(outcome.rows, row)),
        origins=(_origin(row.pair.reference), _origin(row.pair.candidate)),
        repro=_repro(session, row),
    )


def _weights(session: Session, row: Row) -> str | None:
    """The sentence on the layer's weights; None if the hint already says that they differ."""
    found = session.layer_weights(row)
    return found.sentence if found is not None and found.hint is None else None


def heat(ref: Array, cand: Array, most: tuple[int, int] = (ROWS, COLUMNS)) -> Heat | None:
    """The heat map of two arrays of one shape; None if they are empty."""
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


def _is_wrong(row: Row) -> bool:
    return row.verdict.name in ("drifts", "diverges")


def _inputs(rows: Sequence[Row], row: Row) -> list[Row]:
    if row.is_input:
        return []
    call = row.pair.reference.call_key
    return [other for other in rows if other.is_input and other.pair.reference.call_key == call]


def _repro(session: Session, row: Row) -> str:
    """A command that runs the candidate's layer on the reference's inputs; empty unless both sides name it alike.

    On the candidate's own inputs the layer would be compared with itself, which reproduces nothing. A command line is
    trusted by whoever pastes it, so it never contains a source that a stranger's dump names. Nor does it contain a dump
    that is deleted when this process ends.
    """
    made = provenance_of(session.candidate)
    if made is None or made.source.kind not in _REPLAYED or not made.is_own:
        return ""
    entry, path = row.pair.reference, session.lasting_reference
    if entry.layer != row.pair.candidate.layer or path is None or "\0" in entry.layer:
        return ""
    words = ["tensordiff", "replay", "--source", str(made.source)]
    words += ["--step", str(entry.step)] * bool(entry.step) + ["--call", str(entry.call)] * (entry.call != 1)
    return shell_line([*words, "-o", "repro"], [path, entry.layer])


def _origin(entry: Entry) -> str:
    origin: Origin = entry.origin or Origin()
    where = f"{origin.source_file}:{origin.source_line}" if origin.source_file else ""
    return printable(", ".join(filter(None, (origin.module_class, where))))
