"""Where in a module the fault lies: in one of its parts, or in what it does between them."""

from __future__ import annotations

from tensordiff.compare.past import Past
from tensordiff.compare.row import Row
from tensordiff.errors import printable


def between_parts(row: Row, past: Past, *, knows_inputs: bool = False) -> str:
    """What is to be added to the reason of a row that diverges, as to where; empty where nothing is known."""
    parts = [part for part in past.parts_of(row.pair) if part.verdict.name != "unknown"]
    if any(not part.is_input for part in parts):
        return _of_parts(row, parts)
    if knows_inputs or past.has_inputs(row.pair) or not past.latest:
        return ""
    before = past.latest[-1].pair.reference.layer
    return f"; its inputs were not dumped, so the fault may lie between {printable(before)} and it"


def _of_parts(row: Row, parts: list[Row]) -> str:
    """Parts that diverge by themselves explain a module; where none does, what stands between them is wrong."""
    if any(part.verdict.name == "diverges" and not part.is_input for part in parts):
        return ""
    first = first_wrong_input(parts)
    where = f", first seen in what {_short(first, row)} was given" if first else ""
    return (
        f"; its parts are right by themselves, so what it does between them is wrong (residual, scale, reshape){where}"
    )


def first_wrong_input(parts: list[Row]) -> Row | None:
    """The first of a module's parts that was given something wrong."""
    return next((part for part in parts if part.is_input and part.verdict.name == "diverges"), None)


def _short(part: Row, row: Row) -> str:
    return printable(part.pair.reference.layer.removeprefix(f"{row.pair.reference.layer}."))
