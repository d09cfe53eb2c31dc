"""The columns of the table: what each is called, how wide it is, and from which width of the table it is shown.

The first frame of the app is laid out by this, so it imports nothing that compares; what stands in a cell is in
``cells``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple


class Column(NamedTuple):
    """One column; numbers stand at the right."""

    id: str
    label: str
    width: int
    from_width: int
    """The width of table from which it is shown, unless the user chose the columns."""
    help: str
    is_number: bool = False


NAME_WIDTH = 18
"""The least that a layer's name is given."""
COLUMNS = (
    Column("index", "#", 5, 0, "Place in execution order", True),
    Column("layer", "layer", NAME_WIDTH, 0, "The layer's name after the rules"),
    Column("port", "port", 10, 112, "Which output or input"),
    Column("shape", "shape", 14, 124, "What both sides have after the views"),
    Column("max_abs", "max|Δ|", 8, 0, "Largest absolute error", True),
    Column("max_rel", "max rel", 8, 136, "Largest relative error", True),
    Column("mse", "mse", 8, 90, "Mean squared error", True),
    Column("rel_l2", "rel_l2", 8, 0, "Norm of the error over norm of the reference: what decides", True),
    Column("injected", "injected", 8, 0, "rel_l2 when given the reference's inputs: the layer's own error", True),
    Column("cosine", "cosine", 8, 144, "Cosine distance", True),
    Column("gain", "in→out×", 8, 152, "Amplification: the error over that of what came in", True),
    Column("golden", "golden×", 8, 160, "Candidate's error over reference's, each against the golden run", True),
    Column("verdict", "verdict", 8, 130, "agrees, drifts, diverges or unknown"),
    Column("profile", "profile", 8, 0, "Error along the tensor, one log scale for all rows"),
    Column("why", "why", 30, 190, "What the verdict rests on"),
)
BY_ID = {column.id: column for column in COLUMNS}
SORTABLE = tuple(column.id for column in COLUMNS if column.id not in ("index", "port", "why"))
_MARGIN = 4
"""Cursor mark, verdict, mark, and a space."""


class PlacedColumn(NamedTuple):
    """A column and the cells it takes."""

    column: Column
    x: int
    width: int

    @property
    def end(self) -> int:
        """The first cell after it."""
        return self.x + self.width


def lay_out(width: int, longest: int, chosen: Sequence[str] | None, missing: Collection[str]) -> list[PlacedColumn]:
    """Columns from left to right. Names take what the others leave, then the profile and the reason do."""
    shown = [c for c in COLUMNS if c.id not in missing and _is_shown(c, width, chosen)]
    widths = {column.id: column.width for column in shown}
    spare = width - _MARGIN - sum(widths.values()) - len(shown) + 1
    for name, most in (("layer", longest), ("profile", 32), ("why", 100)):
        if name in widths and spare > 0:
            grown = max(0, min(spare, most - widths[name]))
            widths[name] += grown
            spare -= grown
    placed, x = [], _MARGIN
    for column in shown:
        placed.append(PlacedColumn(column, x, widths[column.id]))
        x += widths[column.id] + 1
    return placed


def _is_shown(column: Column, width: int, chosen: Sequence[str] | None) -> bool:
    if chosen is not None:
        return column.id in chosen or column.id == "layer"
    return width >= column.from_width
