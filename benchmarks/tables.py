"""Tables of docs/speed.md, and the goals in them that a run has missed: said by the numbers, never by hand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

GOALS = ("goal", "limit we hold")
"""Headings of a last column with goals, which the column before it is held to."""
_AMOUNT = re.compile(r"(at least )?\**([\d,.]*\d) ?(×|ms|s|MB|GB)(?!\w)")
_TO_ONE_UNIT = {"×": ("×", 1.0), "ms": ("s", 1e-3), "s": ("s", 1.0), "MB": ("MB", 1.0), "GB": ("MB", 1e3)}


class Table(NamedTuple):
    """A table of the page."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """As Markdown."""
        lines = [f"## {self.title}", "", "| " + " | ".join(self.headings) + " |", "|" + "---|" * len(self.headings)]
        return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in self.rows]) + "\n"

    def missed(self) -> Iterator[str]:
        """A line for each row that misses its goal."""
        if self.headings[-1] not in GOALS:
            return
        for what, *_, measured, goal in self.rows:
            if _is_missed(measured, goal):
                number = measured.replace("*", "").partition(" (")[0]
                yield f"- {self.title}, {what}: {number}, goal {goal}"


def missed_goals(tables: Sequence[Table]) -> str:
    """The part of the page that names the goals that this run has missed."""
    lines = [line for table in tables for line in table.missed()]
    told = "\n".join(lines) if lines else "None."
    return f"## Goals that this run missed\n\n{told}\n"


def _is_missed(measured: str, goal: str) -> bool:
    wanted, found = _AMOUNT.match(goal), _AMOUNT.match(measured)
    if wanted is None:  # "-", or a goal in words
        return False
    if found is None:
        raise ValueError(f"{measured!r} cannot be held to the goal {goal!r}")
    (unit, number), (other, limit) = _amount(found), _amount(wanted)
    if unit != other:
        raise ValueError(f"{measured!r} and its goal {goal!r} are of different units")
    return number < limit if wanted[1] else number > limit


def _amount(found: re.Match[str]) -> tuple[str, float]:
    unit, factor = _TO_ONE_UNIT[found[3]]
    return unit, float(found[2].replace(",", "")) * factor
