"""Where two implementations differ in structure, and where they meet again.

Between two consecutive pairs there may be layers that only one side has. The surrounding pairs show whether that
matters: if the next one agrees, the structure differs and the result does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tensordiff.align.index import parts_of
from tensordiff.align.match import Alignment, Pair
from tensordiff.dump.model import Dump, Entry


class Gap(NamedTuple):
    """Consecutive orphans of one side, and the pairs before and after them; None at either end."""

    side: str
    orphans: tuple[Entry, ...]
    before: Pair | None
    after: Pair | None


def gaps(alignment: Alignment, reference: Dump, candidate: Dump) -> list[Gap]:
    """The gaps of both sides, in execution order; none for a side without an order."""
    all_gaps: list[Gap] = []
    for side, dump, orphans in (
        ("reference", reference, alignment.reference_orphans),
        ("candidate", candidate, alignment.candidate_orphans),
    ):
        if dump.ordered:
            all_gaps += _gaps(side, dump, orphans, alignment.pairs)
    return all_gaps


def _gaps(side: str, dump: Dump, orphans: Sequence[Entry], pairs: Sequence[Pair]) -> list[Gap]:
    lonely = {id(entry) for entry in orphans if not entry.is_input}
    pair_of = {
        id(part): pair for pair in pairs for part in parts_of(getattr(pair, side)) if not pair.reference.is_input
    }
    side_gaps: list[Gap] = []
    run: list[Entry] = []
    before: Pair | None = None
    for entry in dump.entries:
        if id(entry) in lonely:
            run.append(entry)
        elif pair := pair_of.get(id(entry)):
            if run:
                side_gaps.append(Gap(side, tuple(run), before, pair))
            run, before = [], pair
    return [*side_gaps, Gap(side, tuple(run), before, None)] if run else side_gaps
