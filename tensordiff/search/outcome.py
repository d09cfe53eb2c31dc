"""What a whole comparison came to: one verdict, the culprits, an exit status.

A culprit is an output that diverges although its inputs agree. A module that holds a culprit diverges, too, so the
innermost one is named. Where everything inside a module agrees and the module does not, the fault is between its parts,
and the module itself is named.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tensordiff.compare.judge.verdict import VerdictName
from tensordiff.compare.row import Row
from tensordiff.dump.model import CallKey


def culprits(rows: Sequence[Row]) -> list[Row]:
    """Every innermost output that diverges, in order; inputs, which no layer computes, only where no output does."""
    wrong = [row for row in rows if row.verdict.name == "diverges"]
    outputs = [row for row in wrong if not row.is_input]
    modules = sorted(_step_and_layer(row) for row in outputs)
    return [row for row in outputs if not _contains_any(row, modules)] or wrong


def _step_and_layer(row: Row) -> tuple[int, str]:
    return row.pair.reference.step, row.pair.reference.layer


def _contains_any(row: Row, modules: Sequence[tuple[int, str]]) -> bool:
    """Whether one of the sorted modules is inside that of a row."""
    step, layer = _step_and_layer(row)
    prefix = f"{layer}."
    at = bisect_left(modules, (step, prefix))
    return at < len(modules) and modules[at][0] == step and modules[at][1].startswith(prefix)


@dataclass(frozen=True)
class Outcome:
    """What a whole comparison came to."""

    rows: tuple[Row, ...]
    unread: tuple[str, ...] = ()
    """Files of the two dumps that could not be read, each with the reason."""

    @cached_property
    def culprit(self) -> Row | None:
        """The first culprit."""
        return next(iter(self.culprits), None)

    @cached_property
    def culprits(self) -> tuple[Row, ...]:
        """One row, its first, for each call of a layer that is a culprit, in order."""
        first: dict[CallKey, Row] = {}
        for row in culprits(self.rows):
            first.setdefault(row.pair.reference.call_key, row)
        return tuple(first.values())

    @cached_property
    def verdict(self) -> VerdictName:
        """Of the whole: one culprit makes it ``diverges``, one pair or file that could not be judged ``unknown``."""
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
