"""Where in a module the fault lies: in one of its parts, or between them."""

from __future__ import annotations

from tensordiff.compare.judge.upstream_error import UpstreamError
from tensordiff.compare.row import Row
from tensordiff.errors import printable


def between_parts(row: Row, upstream: UpstreamError, *, knows_inputs: bool = False) -> str:
    """What to add to the reason of a row that diverges, about where the fault lies; empty where nothing is known."""
    parts = [part for part in upstream.parts_of(row.pair) if part.verdict.name != "unknown"]
    if any(not part.is_input for part in parts):
        return _of_parts(row, parts)
    if knows_inputs or upstream.has_inputs(row.pair) or not upstream.latest_outputs:
        return ""
    before = upstream.latest_outputs[-1].pair.reference.layer
    return f"; its inputs were not dumped, so the fault may lie between {printable(before)} and it"


def _of_parts(row: Row, parts: list[Row]) -> str:
    """A part that diverges explains its module; where none does, the fault is between the parts."""
    if any(part.verdict.name == "diverges" and not part.is_input for part in parts):
        return ""
    first = _first_wrong_input(parts)
    where = f", first seen in what {_short(first, row)} was given" if first else ""
    return (
        f"; its parts are right by themselves, so what it does between them is wrong (residual, scale, reshape){where}"
    )


def _first_wrong_input(parts: list[Row]) -> Row | None:
    """The first wrong input among the rows of a module's parts."""
    return next((part for part in parts if part.is_input and part.verdict.name == "diverges"), None)


def _short(part: Row, row: Row) -> str:
    return printable(part.pair.reference.layer.removeprefix(f"{row.pair.reference.layer}."))
