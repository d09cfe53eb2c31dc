"""Measuring an alignment: one row a pair, in order, as soon as it is known.

The engine is an iterator and nothing more: who shows progress or stops early is not its business.
A pair that cannot be read or whose shapes nobody reconciled is a row too, with verdict ``unknown``
and the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tensordiff.align.match import Alignment, Pair
from tensordiff.align.views import reconcile
from tensordiff.compare.measure import measure
from tensordiff.compare.sums import Diff
from tensordiff.compare.verdict import Limits, Verdict, judge
from tensordiff.dump.dtypes import Array, name_of
from tensordiff.dump.model import Entry
from tensordiff.errors import DumpError


@dataclass(frozen=True, slots=True)
class Row:
    """One measured pair."""

    pair: Pair
    dtypes: tuple[str, str] | None
    """None where one could not be read."""
    shape: tuple[int, ...] | None
    """What both have after the views; None where they have none in common."""
    views: tuple[str, ...]
    diff: Diff | None
    injected: Diff | None
    golden_ratio: float | None
    verdict: Verdict

    @property
    def is_input(self) -> bool:
        """Whether this pair is what a layer was given."""
        return self.pair.reference.is_input

    @property
    def is_exact(self) -> bool:
        """Whether these are numbers that nothing rounds: ids, positions, masks."""
        return self.dtypes is not None and self.dtypes[0].startswith(("int", "uint", "bool"))


@dataclass(frozen=True)
class Third:
    """Entries of a third dump, found by the reference entry they answer."""

    entries: Mapping[int, Entry]

    @classmethod
    def of(cls, alignment: Alignment) -> Third:
        """From the alignment of the reference with that dump."""
        return cls({id(pair.reference): pair.candidate for pair in alignment.pairs})

    def get(self, reference: Entry) -> Entry | None:
        """The entry that answers a reference entry, if any."""
        return self.entries.get(id(reference))


@dataclass(frozen=True)
class Engine:
    """All that measuring needs beside the pairs."""

    limits: Limits = field(default_factory=Limits)
    injected: Third | None = None
    golden: Third | None = None

    def rows(self, pairs: Iterator[Pair] | tuple[Pair, ...]) -> Iterator[Row]:
        """Measure pairs one by one."""
        carried = _Carried()
        for pair in pairs:
            row = self._row(pair, carried)
            carried.note(row)
            yield row

    def _row(self, pair: Pair, carried: _Carried) -> Row:
        try:
            ref, cand = pair.reference.read(), pair.candidate.read()
        except DumpError as error:
            return _unknown(pair, str(error))
        dtypes = name_of(ref.dtype), name_of(cand.dtype)
        views = reconcile(ref.shape, cand.shape)
        if views is None:
            why = f"shapes {list(ref.shape)} and {list(cand.shape)} need a view that only a rule can name"
            return _unknown(pair, why, dtypes)
        ref, cand = views.apply(ref), views.apply(cand)
        diff = measure(ref, cand, self.limits.tolerance)
        injected = self._measure_injected(pair, ref)
        ratio = self._golden_ratio(pair, ref, cand)
        verdict = judge(diff, dtypes, carried.into(pair), self.limits)
        if injected is not None and not self.limits.are_set:
            verdict = _weigh_injected(verdict, diff, injected, dtypes)
        return Row(pair, dtypes, views.shape, tuple(views.named()), diff, injected, ratio, verdict)

    def _measure_injected(self, pair: Pair, ref: Array) -> Diff | None:
        entry = self.injected.get(pair.reference) if self.injected else None
        if entry is None:
            return None
        other = entry.read()
        seen = reconcile(ref.shape, other.shape)
        return measure(seen.apply(ref), seen.apply(other), self.limits.tolerance) if seen else None

    def _golden_ratio(self, pair: Pair, ref: Array, cand: Array) -> float | None:
        """Candidate's error over reference's, each against the golden; None where the reference is exact."""
        entry = self.golden.get(pair.reference) if self.golden else None
        if entry is None:
            return None
        golden = entry.read()
        seen = reconcile(golden.shape, ref.shape)
        if seen is None:
            return None
        of_reference, of_candidate = (measure(seen.apply(golden), seen.apply(side)).rel_l2 for side in (ref, cand))
        return of_candidate / of_reference if of_reference > 0 else None


class _Carried:
    """The error that came into a layer: of its inputs where they were dumped, else of what ran before it."""

    def __init__(self) -> None:
        self.inputs: dict[tuple[str, int, int], float] = {}
        self.before: float | None = None

    def into(self, pair: Pair) -> float | None:
        """What is known to have come into a pair's layer; into an input comes what ran before it."""
        if pair.reference.is_input:
            return self.before
        return self.inputs.get(_place(pair), self.before)

    def note(self, row: Row) -> None:
        """Remember a row for those that follow."""
        if row.diff is None or row.is_exact:
            return
        if row.is_input:
            place = _place(row.pair)
            self.inputs[place] = _worse(self.inputs.get(place, 0.0), row.diff.rel_l2)
        else:
            self.before = row.diff.rel_l2


def _place(pair: Pair) -> tuple[str, int, int]:
    return pair.reference.layer, pair.reference.step, pair.reference.call


def _worse(one: float, other: float) -> float:
    """The larger error; a NaN is larger than any."""
    return one if math.isnan(one) or one > other else other


def _weigh_injected(verdict: Verdict, diff: Diff, injected: Diff, dtypes: tuple[str, str]) -> Verdict:
    """With right inputs injected, what is still wrong is a culprit, what is right again a victim."""
    if verdict.name == "agrees":
        return verdict
    alone = judge(injected, dtypes, None, Limits())
    if alone.name == "agrees":
        why = f"rel_l2 {diff.rel_l2:.1e}, but {injected.rel_l2:.1e} when given the reference's inputs"
        return Verdict("drifts", why)
    if alone.name == "diverges":
        return Verdict("diverges", f"{alone.why} even when given the reference's inputs")
    return verdict


def _unknown(pair: Pair, why: str, dtypes: tuple[str, str] | None = None) -> Row:
    return Row(pair, dtypes, None, (), None, None, None, Verdict("unknown", why))
