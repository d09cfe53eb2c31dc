"""The text of a cell of the table, made only when its line is drawn."""

from __future__ import annotations

from functools import lru_cache

from tensordiff.align.match import Pair
from tensordiff.compare.row import Row
from tensordiff.errors import printable
from tensordiff.report.labels import number, sparkline
from tensordiff.tui.table.columns import PlacedColumn
from tensordiff.tui.table.model import ABSENT, NUMBERS, Listing, layer_name
from tensordiff.tui.text import fit, right

BLANK = ""
_sparkline = lru_cache(1 << 10)(sparkline)
"""Cached, because it is half the time of drawing a row, and a table is drawn many times while it is measured."""
FOLDED, UNFOLDED = "▸", "▾"


def cell(listing: Listing, position: int, placed: PlacedColumn) -> str:
    """A cell's text, exactly as wide as its column."""
    text = _text(listing, position, placed)
    return right(text, placed.width) if placed.column.is_number else fit(text, placed.width)


def _text(listing: Listing, at: int, placed: PlacedColumn) -> str:
    name, pair, row = placed.column.id, listing.pairs[at], listing.rows[at]
    if name in NUMBERS:
        value = float(listing.column(name)[at])
        return (BLANK if row is None else "-") if value == ABSENT else number(value)
    match name:
        case "index":
            return str(pair.index)
        case "port":
            return printable(pair.reference.port)
        case "shape" | "verdict" | "profile" | "why":
            return BLANK if row is None else _measured_text(row, placed)
    raise ValueError(f"the column {name!r} has neither a value in COLUMNS nor a case in cells")


def _measured_text(row: Row, placed: PlacedColumn) -> str:
    match placed.column.id:
        case "shape":
            return "-" if row.shape is None else "×".join(map(str, row.shape)) or "scalar"
        case "verdict":
            return row.verdict.name
        case "profile" if row.diff:
            return _sparkline(row.diff.profile, placed.width)
    return printable(row.verdict.why)


def tree_name(pair: Pair | None, path: str, is_module: bool, is_folded: bool, depth: int) -> str:
    """A name in the tree: its last part, indented by its depth."""
    fold = (FOLDED if is_folded else UNFOLDED) if is_module else " "
    last = printable(path.rpartition(".")[2] or path)
    port = "" if pair is None or pair.reference.port in ("output", "output_0") else f" {printable(pair.reference.port)}"
    return f"{'  ' * depth}{fold} {last}{port}"


def flat_name(listing: Listing, at: int, has_port: bool) -> str:
    """A name in the list, with its port if that has no column."""
    return layer_name(listing.pairs[at]) if has_port else listing.labels[at]
