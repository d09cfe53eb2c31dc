"""What is known of two runs before any pair is measured: which pairs there are, and what has none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tensordiff.align.index import parts_of
from tensordiff.align.match import Pair
from tensordiff.dump.model import CallKey, Dump, Entry


@dataclass(frozen=True)
class Pairing:
    """All pairs of two runs, and what the reference has without one."""

    pairs: Sequence[Pair] = ()
    reference: Dump | None = None
    orphans: Sequence[Entry] = ()
    """Entries of the reference that are in no pair."""

    @cached_property
    def own_results(self) -> frozenset[int]:
        """Pairs, by their numbers, of an input of the reference's layer with what the candidate's own computes.

        A norm adds the residual to its input and gives the sum on. What it was given is in another pair.
        """
        odd = [pair for pair in self.pairs if pair.reference.is_input and not pair.candidate.is_input]
        if not odd:
            return frozenset()
        calls = {pair.reference.call_key for pair in odd}
        given: dict[CallKey, set[CallKey]] = defaultdict(set)
        for pair in self.pairs:
            if pair.reference.is_input and pair.reference.call_key in calls:
                given[pair.reference.call_key] |= {p.call_key for p in parts_of(pair.candidate) if p.is_input}
        return frozenset(
            pair.index
            for pair in odd
            if not given[pair.reference.call_key].isdisjoint(part.call_key for part in parts_of(pair.candidate))
        )

    def orphans_before(self, entry: Entry | None) -> Iterator[Entry]:
        """Orphans of the reference that ran before an entry; all of them where there is none, or no order."""
        if not self.orphans or self.reference is None:
            return
        left, until = {id(orphan) for orphan in self.orphans}, set[int]()
        if entry is not None and self.reference.ordered:
            until = {id(part) for part in parts_of(entry)}
        for other in self.reference.entries:
            if id(other) in until:
                return
            if id(other) in left:
                yield other
