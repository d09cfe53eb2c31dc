"""Execution order: of the pairs, and whether both sides ran in the same.

A folder of MAX files has none. Then it is taken from the other side; if neither has one it is recovered
from the values, see ``recover``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple, TypeVar

from tensordiff.align.index import parts_of
from tensordiff.align.recover import recover
from tensordiff.dump.model import Dump, Entry

Order = Literal["same", "differs", "unknown"]
Found = TypeVar("Found", bound=tuple[Entry, Entry, str])


class Part(NamedTuple):
    """One position at which the two sides do not run the same layer."""

    position: int
    reference: str
    candidate: str


def in_execution_order(reference: Dump, candidate: Dump, found: Sequence[Found]) -> tuple[list[Found], str]:
    """Pairs as they ran, and what that was taken from."""
    if candidate.ordered and not reference.ordered:
        place = _places(candidate.entries)
        return sorted(found, key=lambda pair: _last(place, pair[1])), "candidate"
    entries, source = (reference.entries, "reference") if reference.ordered else _recovered(reference)
    place = _places(entries)
    return sorted(found, key=lambda pair: _last(place, pair[0])), source


def _recovered(dump: Dump) -> tuple[Sequence[Entry], str]:
    entries, by_values = recover(dump)
    return entries, "values" if by_values else "names"


def _places(entries: Sequence[Entry]) -> dict[int, int]:
    return {id(entry): k for k, entry in enumerate(entries)}


def _last(places: dict[int, int], entry: Entry) -> int:
    """An expression is known when the last of its parts is."""
    place = places.get(id(entry))
    return place if place is not None else max(places[id(part)] for part in parts_of(entry))


def _each_once(found: Sequence[tuple[Entry, Entry, str]]) -> list[tuple[Entry, Entry]]:
    """Pairs without those that see part of what is paired whole: the last token's logits run when an engine likes."""
    whole = {id(r) for r, _, _ in found}
    return [(r, c) for r, c, _ in found if not _sees_part_of(r, whole)]


def _sees_part_of(entry: Entry, whole: Collection[int]) -> bool:
    parts = list(parts_of(entry))
    return len(parts) == 1 and parts[0] is not entry and id(parts[0]) in whole


def compare_order(reference: Dump, candidate: Dump, found: Sequence[tuple[Entry, Entry, str]]) -> Order:
    """Whether what was paired ran in the same sequence on both sides."""
    if not (reference.ordered and candidate.ordered):
        return "unknown"
    return "differs" if order_parts(reference, candidate, found) else "same"


def order_parts(reference: Dump, candidate: Dump, found: Sequence[tuple[Entry, Entry, str]]) -> list[Part]:
    """Position by position, where the two sequences of paired outputs are not the same."""
    outputs = [(r, c) for r, c in _each_once(found) if not r.is_input]
    ours, theirs = _places(reference.entries), _places(candidate.entries)
    by_reference = sorted(outputs, key=lambda pair: _last(ours, pair[0]))
    by_candidate = sorted(outputs, key=lambda pair: _last(theirs, pair[1]))
    return [
        Part(k, a[0].name, b[0].name)
        for k, (a, b) in enumerate(zip(by_reference, by_candidate, strict=True))
        if a[0] is not b[0]
    ]
