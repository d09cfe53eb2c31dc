"""What is known about two runs before anything is measured: which pairs there are, and what is unpaired."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tensordiff.align.index import ComputedTensor, parts_of
from tensordiff.align.match import Pair
from tensordiff.compare.judge.parents import parent_of
from tensordiff.dump.model import CallKey, Dump, Entry


@dataclass(frozen=True)
class Pairing:
    """All pairs of two runs, and the reference's unpaired entries."""

    pairs: Sequence[Pair] = ()
    reference: Dump | None = None
    orphans: Sequence[Entry] = ()
    """Entries of the reference that are in no pair."""

    @cached_property
    def own_results(self) -> frozenset[int]:
        """Indices of pairs whose reference is an input of a layer and whose candidate is computed by that layer itself.

        An example is a norm that adds the residual to its input and returns the sum. What such a layer was given is in
        another pair.
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

    @cached_property
    def calls_of_fused(self) -> dict[CallKey, CallKey]:
        """Of outputs that answer a fused layer: the call that they are named after, and the one with the input.

        A fused projection has one input, and each of the projections that it answers has its own. It was compared with
        that of one of them, which need not be the one that the computed tensor is named after.
        """
        fused = {
            pair.candidate.call_key: pair.reference.call_key
            for pair in self.pairs
            if not pair.reference.is_input and type(pair.reference.stored) is ComputedTensor
        }
        if not fused:
            return {}
        given = (pair for pair in self.pairs if pair.reference.is_input and pair.candidate.call_key in fused)
        return {fused[pair.candidate.call_key]: pair.reference.call_key for pair in given}

    def parts_left_before(self, module: Entry, entry: Entry | None) -> list[Entry]:
        """Unpaired outputs of a module's parts that ran before ``entry``; all of them if the order is unknown.

        Many modules may diverge and each one asks, so this must not go through all entries.
        """
        left = self._parts_left.get((module.step, module.layer), [])
        if not left or entry is None or self.reference is None or not self.reference.ordered:
            return left
        until = min((self._positions[id(p)] for p in parts_of(entry) if id(p) in self._positions), default=None)
        return left if until is None else [other for other in left if self._positions[id(other)] < until]

    @cached_property
    def _parts_left(self) -> dict[tuple[int, str], list[Entry]]:
        """Unpaired outputs of the reference, in order, by their step and the parent of their layer."""
        if not self.orphans or self.reference is None:
            return {}
        found: dict[tuple[int, str], list[Entry]] = defaultdict(list)
        left = {id(orphan) for orphan in self.orphans if not orphan.is_input}
        for entry in self.reference.entries:
            if id(entry) in left:
                found[entry.step, parent_of(entry.layer)].append(entry)
        return dict(found)

    @cached_property
    def _positions(self) -> dict[int, int]:
        """The position of each entry of the reference, by its id."""
        return {id(entry): k for k, entry in enumerate(self.reference.entries)} if self.reference else {}
