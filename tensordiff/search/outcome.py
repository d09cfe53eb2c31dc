"""The first culprit: where inputs agree and the output does not.

A module that holds a culprit diverges too; the innermost that diverges is the one to name. Where all
within a module agrees and the module does not, what it does between its parts is wrong, and it is
named itself.

What a whole comparison came to: one verdict, the first culprit, an exit status.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tensordiff.compare.judge.verdict import VerdictName
from tensordiff.compare.row import Row


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


@dataclass(frozen=True)
class Outcome:
    """What a whole comparison came to."""

    rows: tuple[Row, ...]
    unread: tuple[str, ...] = ()
    """Files of the two dumps that could not be read, each with the reason."""

    @cached_property
    def culprit(self) -> Row | None:
        """The first place that is wrong by itself."""
        return next(iter(self.culprits), None)

    @cached_property
    def culprits(self) -> tuple[Row, ...]:
        """Every place that is wrong by itself, the first first; one row a layer."""
        return tuple(independent(self.rows))

    @cached_property
    def verdict(self) -> VerdictName:
        """Of the whole: one culprit is enough to diverge, one pair or file nobody could judge to be unsure."""
        if self.culprit is not None:
            return "diverges"
        names = {row.verdict.name for row in self.rows}
        if not names or "unknown" in names or self.unread:
            return "unknown"
        return "drifts" if "drifts" in names else "agrees"

    @property
    def exit_status(self) -> int:
        """0 agrees, 1 diverges, 2 could not tell."""
        return {"agrees": 0, "drifts": 0, "diverges": 1, "unknown": 2}[self.verdict]
