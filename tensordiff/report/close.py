"""A closer look at one row: worst elements, picture, kind of error, what its layer was given, and its source."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from tensordiff.capture.again import how_made
from tensordiff.compare.detail import Element
from tensordiff.compare.engine import Row, values_of
from tensordiff.compare.hint import Hint
from tensordiff.dump.model import Entry, Origin
from tensordiff.errors import printable
from tensordiff.report.compared import Compared
from tensordiff.report.heat import Heat, heat
from tensordiff.search.outcome import Outcome

WORST = 10
_REPLAYED = ("hf", "py")
"""Kinds of source of which one layer can be run alone."""


@dataclass(frozen=True)
class Close:
    """One row, closely."""

    row: Row
    hint: Hint | None
    worst: tuple[Element, ...]
    heat: Heat | None
    inputs: tuple[Row, ...]
    """What the same layer was given, as far as it was dumped."""
    origins: tuple[str, str]
    """The module and its place in the source on both sides; empty where a dump does not say."""
    repro: str
    """The command that makes a repro of this layer alone; empty where no source is known to run it again."""


def close_up(session: Compared, outcome: Outcome, row: Row) -> Close:
    """Look at one row; reads the pair again."""
    sides = values_of(row.pair) if row.diff is not None else None
    return Close(
        row,
        session.hint(row) if _is_wrong(row) else None,
        tuple(session.worst(row, WORST)),
        heat(*sides) if sides else None,
        tuple(_inputs(outcome.rows, row)),
        (_origin(row.pair.reference), _origin(row.pair.candidate)),
        _repro(session, row),
    )


def _is_wrong(row: Row) -> bool:
    return row.verdict.name in ("drifts", "diverges")


def _inputs(rows: Sequence[Row], row: Row) -> list[Row]:
    if row.is_input:
        return []
    place = _place(row)
    return [other for other in rows if other.is_input and _place(other) == place]


def _place(row: Row) -> tuple[str, int, int]:
    entry = row.pair.reference
    return entry.layer, entry.step, entry.call


def _repro(session: Compared, row: Row) -> str:
    """The candidate's layer on the reference's inputs, where both call it the same; else on its own."""
    made = how_made(session.candidate)
    if made is None or made.source.kind not in _REPLAYED:
        return ""
    ours, theirs = row.pair.reference, row.pair.candidate
    words = ["tensordiff", "replay", str(session.candidate.path), theirs.layer]
    if ours.layer == theirs.layer:
        words = ["tensordiff", "replay", str(session.reference.path), ours.layer, "--source", str(made.source)]
    words += ["--step", str(ours.step)] * bool(ours.step) + ["--call", str(ours.call)] * (ours.call != 1)
    return printable(shlex.join([*words, "-o", "repro"]))


def _origin(entry: Entry) -> str:
    origin: Origin = entry.origin or Origin()
    where = f"{origin.source_file}:{origin.source_line}" if origin.source_file else ""
    return printable(", ".join(filter(None, (origin.module_class, where))))
