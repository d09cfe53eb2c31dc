"""The columns of the table: what each shows, its width, and the table width from which it is shown.

A numeric column is a line in ``COLUMNS`` and nothing else: ``value`` names the attribute of a ``Row`` that ``model``
collects for sorting and ``cells`` formats. A text column also needs its case in ``cells``.

The first frame of the app uses this list, so this module imports nothing that compares.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

ThirdDump = Literal["injected", "golden"]


class Column(NamedTuple):
    """A column; numbers are aligned to the right."""

    id: str
    label: str
    width: int
    from_width: int
    """The table width from which it is shown, unless the user chose the columns."""
    help: str
    value: str | None = None
    """The number's attribute in ``Row``, or in a ``Diff`` of it: ``diff.max_abs``. None for a text column."""
    needs: ThirdDump | None = None
    """The dump, besides reference and candidate, without which the column is left out."""

    @property
    def is_number(self) -> bool:
        """Whether it is aligned to the right."""
        return self.value is not None or self.id == "index"


NAME_WIDTH = 18
"""The least width of a layer's name."""
_INJECTED = "rel_l2 when given the reference's inputs: the layer's own error"
_AMPLIFICATION = "rel_l2 over that of the layer's input"
_GOLDEN = "Candidate's error over reference's, each against the golden run"
_REL_L2 = "Norm of the error over norm of the reference: what decides"
COLUMNS = (
    Column("index", "#", 5, 0, "Place in execution order"),
    Column("layer", "layer", NAME_WIDTH, 0, "The layer's name after the rules"),
    Column("port", "port", 10, 112, "Which output or input"),
    Column("shape", "shape", 14, 124, "What both sides have after the views"),
    Column("max_abs", "max|Δ|", 8, 0, "Largest absolute error", value="diff.max_abs"),
    Column("max_rel", "max rel", 8, 136, "Largest relative error", value="diff.max_rel"),
    Column("mse", "mse", 8, 90, "Mean squared error", value="diff.mse"),
    Column("rel_l2", "rel_l2", 8, 0, _REL_L2, value="diff.rel_l2"),
    Column("injected", "injected", 8, 0, _INJECTED, value="injected.rel_l2", needs="injected"),
    Column("cosine", "cosine", 8, 144, "Cosine distance", value="diff.cosine_distance"),
    Column("amplification", "amplif.", 8, 152, _AMPLIFICATION, value="amplification"),
    Column("golden", "golden×", 8, 160, _GOLDEN, value="golden_ratio", needs="golden"),
    Column("verdict", "verdict", 8, 130, "agrees, drifts, diverges or unknown"),
    Column("profile", "profile", 8, 0, "Error along the tensor, one log scale for all rows"),
    Column("why", "why", 30, 190, "What the verdict rests on"),
)
BY_ID = {column.id: column for column in COLUMNS}
_SORTABLE_TEXT = ("layer", "shape", "verdict", "profile")
"""Text columns that ``model`` can sort by."""
SORTABLE = tuple(column.id for column in COLUMNS if column.value is not None or column.id in _SORTABLE_TEXT)
_MARGIN = 4
"""Cursor mark, verdict, mark, and a space."""


def columns_without(there: Collection[ThirdDump]) -> frozenset[str]:
    """The columns to leave out if only these third dumps are given."""
    return frozenset(column.id for column in COLUMNS if column.needs is not None and column.needs not in there)


class PlacedColumn(NamedTuple):
    """A column and its cells."""

    column: Column
    x: int
    width: int

    @property
    def end(self) -> int:
        """The first cell after it."""
        return self.x + self.width


def lay_out(
    width: int, longest: int, chosen: Sequence[str] | None, missing: Collection[str], rows: int = 0
) -> list[PlacedColumn]:
    """Place columns from left to right; the index column has room for the number of rows.

    Names take the width that the others leave, then the profile and the reason do.
    """
    shown = [c for c in COLUMNS if c.id not in missing and _is_shown(c, width, chosen)]
    widths = {column.id: column.width for column in shown}
    if "index" in widths:
        widths["index"] = max(widths["index"], len(str(rows - 1)))
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
