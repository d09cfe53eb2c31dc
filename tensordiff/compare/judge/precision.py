"""The precision that a tensor was computed in, which may be coarser than the type it is stored in.

A residual stream kept in float32 holds what bfloat16 parts added to it, and a router's float32 logits are made of
bfloat16 states. What a tensor may be off by is decided by the coarsest type on its way: that of its layer's inputs and
parts where they were dumped, else that of the run, which captures note.
"""

from __future__ import annotations

from collections import defaultdict

from tensordiff.align.match import Pair
from tensordiff.compare.judge.upstream_error import parent_of
from tensordiff.compare.judge.verdict import coarser
from tensordiff.dump.model import CallKey

Dtypes = tuple[str, str]


class Precision:
    """The coarsest types on the way so far, of the reference and of the candidate."""

    def __init__(self, run: Dtypes | None = None) -> None:
        self.run = run
        self.inputs: dict[CallKey, Dtypes] = {}
        self.given: set[CallKey] = set()
        self.parts: defaultdict[tuple[str, int], list[Dtypes]] = defaultdict(list)
        self.before: Dtypes | None = None

    def on_the_way(self, pair: Pair, dtypes: Dtypes, *, is_exact: bool) -> Dtypes:
        """The coarsest types that a pair was computed with; remembered for what is computed from it."""
        entry = pair.reference
        if is_exact:
            if entry.is_input:
                self.given.add(entry.call_key)
            return dtypes
        if entry.is_input:
            found = _coarsest(dtypes, self.before)
            self.inputs[entry.call_key] = _coarsest(found, self.inputs.get(entry.call_key))
            self.given.add(entry.call_key)
            return found
        found = dtypes
        for other in (self.inputs.get(entry.call_key), *self.parts.pop((entry.layer, entry.step), ())):
            found = _coarsest(found, other)
        if entry.call_key not in self.given:
            found = _coarsest(found, self.run)
        self.parts[parent_of(entry.layer), entry.step].append(found)
        self.before = _coarsest(found, self.before)
        return found


def _coarsest(one: Dtypes, other: Dtypes | None) -> Dtypes:
    return one if other is None else (coarser(one[0], other[0]), coarser(one[1], other[1]))
