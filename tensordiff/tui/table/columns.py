"""The columns of the table: what each is called, how wide, and from which width of table it is worth its room.

What stands in a cell of the table: plain text, made when the line is drawn and not before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

from tensordiff.align.match import Pair
from tensordiff.errors import printable
from tensordiff.report.labels import number, sparkline
from tensordiff.tui.table.model import ABSENT, NUMBERS, Listing, layer_name
from tensordiff.tui.text import fit, right


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


class Placed(NamedTuple):
    """A column and the cells it takes."""

    column: Column
    x: int
    width: int

    @property
    def end(self) -> int:
        """The first cell after it."""
        return self.x + self.width


def lay_out(width: int, longest: int, chosen: Sequence[str] | None, missing: Collection[str]) -> list[Placed]:
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
        placed.append(Placed(column, x, widths[column.id]))
        x += widths[column.id] + 1
    return placed


def _is_shown(column: Column, width: int, chosen: Sequence[str] | None) -> bool:
    if chosen is not None:
        return column.id in chosen or column.id == "layer"
    return width >= column.from_width


BLANK = ""
_sparkline = lru_cache(1 << 10)(sparkline)
"""Half the time of drawing a row, and a table is drawn many times while it is measured."""
FOLDED, UNFOLDED = "▸", "▾"


def cell(listing: Listing, position: int, placed: Placed) -> str:
    """A cell's text, exactly as wide as its column."""
    text = _text(listing, position, placed)
    return right(text, placed.width) if placed.column.is_number else fit(text, placed.width)


def _text(listing: Listing, at: int, placed: Placed) -> str:
    name, pair, row = placed.column.id, listing.pairs[at], listing.rows[at]
    if name in NUMBERS:
        value = float(listing.column(name)[at])
        return (BLANK if row is None else "-") if value == ABSENT else number(value)
    if name == "index":
        return str(pair.index)
    if name == "port":
        return printable(pair.reference.port)
    if row is None:
        return BLANK
    match name:
        case "shape":
            return "-" if row.shape is None else "×".join(map(str, row.shape)) or "scalar"
        case "verdict":
            return row.verdict.name
        case "profile":
            return _sparkline(row.diff.profile, placed.width) if row.diff else printable(row.verdict.why)
    return printable(row.verdict.why)


def tree_name(pair: Pair | None, path: str, is_module: bool, is_folded: bool, depth: int) -> str:
    """A name in the tree: its last part, further in the deeper it lies."""
    fold = (FOLDED if is_folded else UNFOLDED) if is_module else " "
    last = printable(path.rpartition(".")[2] or path)
    port = "" if pair is None or pair.reference.port in ("output", "output_0") else f" {printable(pair.reference.port)}"
    return f"{'  ' * depth}{fold} {last}{port}"


def flat_name(listing: Listing, at: int, has_port: bool) -> str:
    """A name in the list; with its port where that has no column."""
    return layer_name(listing.pairs[at]) if has_port else listing.labels[at]
