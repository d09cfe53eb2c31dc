"""The first culprit: where inputs agree and the output does not.

A module that holds a culprit diverges too; the innermost that diverges is the one to name. Where all
within a module agrees and the module does not, what it does between its parts is wrong, and it is
named itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from tensordiff.compare.engine import Row


def culprits(rows: Sequence[Row]) -> list[Row]:
    """Every output that diverges by itself, in order; inputs, which no layer computes, only where no output does."""
    wrong = [row for row in rows if row.verdict.name == "diverges"]
    outputs = [row for row in wrong if not row.is_input]
    places = sorted(_place(row) for row in outputs)
    return [row for row in outputs if not _holds_any(row, places)] or wrong


def independent(rows: Sequence[Row]) -> list[Row]:
    """The culprits, one row for each run of a layer: its first."""
    first: dict[tuple[str, int, int], Row] = {}
    for row in culprits(rows):
        entry = row.pair.reference
        first.setdefault((entry.layer, entry.step, entry.call), row)
    return list(first.values())


def first_culprit(rows: Sequence[Row]) -> Row | None:
    """The first place that is wrong by itself."""
    return next(iter(culprits(rows)), None)


def _place(row: Row) -> tuple[int, str]:
    return row.pair.reference.step, row.pair.reference.layer


def _holds_any(row: Row, places: Sequence[tuple[int, str]]) -> bool:
    """Whether one of the sorted places lies in a module."""
    step, layer = _place(row)
    inside = f"{layer}."
    at = bisect_left(places, (step, inside))
    return at < len(places) and places[at][0] == step and places[at][1].startswith(inside)
