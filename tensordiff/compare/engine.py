"""Measuring an alignment: one row a pair, in order, as soon as it is known.

The engine is an iterator and nothing more: who shows progress or stops early is not its business.
A pair that cannot be read or whose shapes nobody reconciled is a row too, with verdict ``unknown``
and the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tensordiff.align.match import Alignment, Pair
from tensordiff.align.views import Views, reconcile
from tensordiff.compare.ahead import in_batches, in_order
from tensordiff.compare.limits import Limits
from tensordiff.compare.logits import has_distributions, logits
from tensordiff.compare.measure import SHARED, Sides, measure_many
from tensordiff.compare.sums import Diff
from tensordiff.compare.verdict import Verdict, judge
from tensordiff.dump.dtypes import Array, name_of
from tensordiff.dump.model import Entry
from tensordiff.errors import AlignError, DumpError

HANDED_OVER = 1 << 15
"""Elements a pair from which another thread may take a batch: with fewer, most of the time is Python's."""


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

    def rows(self, pairs: Iterable[Pair]) -> Iterator[Row]:
        """Measure pairs, in order; a row comes as soon as it and all before it are known."""
        carried = _Carried()
        for measured in in_order(self._measure, in_batches(map(_open, pairs), _size), _weight):
            for numbers in measured:
                row = self._row(numbers, carried)
                carried.note(row)
                yield row

    def _measure(self, batch: Sequence[_Opened | Row]) -> list[_Numbers | Row]:
        """All that needs no other pair, for a few pairs at once."""
        asked = [opened if isinstance(opened, Row) else self._ask(opened) for opened in batch]
        diffs = iter(measure_many(sides for ask in asked if isinstance(ask, _Asked) for sides in ask.sides))
        return [_answer(ask, diffs) if isinstance(ask, _Asked) else ask for ask in asked]

    def _ask(self, opened: _Opened) -> _Asked | Row:
        """What is to be measured of a pair; a row at once where it cannot be."""
        pair, _, ref, cand = opened
        limits = self.limits.for_pair(pair.name, pair.reference.port)
        wants_kl_div = limits.kl_div is not None and not pair.reference.is_input
        if wants_kl_div and not (has_distributions(ref) and has_distributions(cand)):
            return _unknown(pair, f"kl_div is of distributions, and shape {list(ref.shape)} holds none")
        sides: list[Sides] = [(ref, cand, limits.tolerance)]
        try:
            injected = self._injected_sides(pair, ref, limits) if self.injected else []
            golden = self._golden_sides(pair, ref, cand) if self.golden else []
        except DumpError as error:
            return _unknown(pair, str(error))
        return _Asked(opened, limits, wants_kl_div, sides + injected + golden, bool(injected), bool(golden))

    def _row(self, numbers: _Numbers | Row, carried: _Carried) -> Row:
        """What the numbers mean after all that came before."""
        if isinstance(numbers, Row):
            return numbers
        pair, dtypes, views, diff, injected, ratio, limits, kl_div = numbers
        verdict = judge(diff, dtypes, carried.into(pair), limits, kl_div)
        if injected is not None and not limits.are_set:
            verdict = _weigh_injected(verdict, diff, injected, dtypes)
        return Row(pair, dtypes, views.shape, (*pair.views, *views.named()), diff, injected, ratio, verdict)

    def _injected_sides(self, pair: Pair, ref: Array, limits: Limits) -> list[Sides]:
        """What the candidate gave with the reference's inputs, beside the reference."""
        entry = self.injected.get(pair.reference) if self.injected else None
        if entry is None:
            return []
        other = entry.read()
        seen = reconcile(ref.shape, other.shape)
        return [(seen.apply(ref), seen.apply(other), limits.tolerance)] if seen else []

    def _golden_sides(self, pair: Pair, ref: Array, cand: Array) -> list[Sides]:
        """Each side beside the golden."""
        entry = self.golden.get(pair.reference) if self.golden else None
        if entry is None:
            return []
        golden = entry.read()
        seen = reconcile(golden.shape, ref.shape)
        return [(seen.apply(golden), seen.apply(side), None) for side in (ref, cand)] if seen else []


class _Opened(NamedTuple):
    """A pair mapped and seen in one shape."""

    pair: Pair
    views: Views
    ref: Array
    cand: Array


class _Asked(NamedTuple):
    """A pair and all that is to be measured of it."""

    opened: _Opened
    limits: Limits
    """Those that are the pair's own."""
    wants_kl_div: bool
    sides: list[Sides]
    """The pair itself; then, where they are there, the injected run's and the golden's."""
    has_injected: bool
    has_golden: bool


def _answer(asked: _Asked, diffs: Iterator[Diff]) -> _Numbers:
    """What was measured of a pair, taken from all that was measured."""
    pair, views, ref, cand = asked.opened
    diff = next(diffs)
    injected = next(diffs) if asked.has_injected else None
    ratio = _ratio(next(diffs).rel_l2, next(diffs).rel_l2) if asked.has_golden else None
    kl_div = logits(ref, cand).kl_div if asked.wants_kl_div else None
    dtypes = name_of(ref.dtype), name_of(cand.dtype)
    return _Numbers(pair, dtypes, views, diff, injected, ratio, asked.limits, kl_div)


def _ratio(of_reference: float, of_candidate: float) -> float | None:
    """Candidate's error over reference's; None where the reference is exact."""
    return of_candidate / of_reference if of_reference > 0 else None


class _Numbers(NamedTuple):
    """A pair's numbers, before they are judged."""

    pair: Pair
    dtypes: tuple[str, str]
    views: Views
    diff: Diff
    injected: Diff | None
    golden_ratio: float | None
    limits: Limits
    """Those that are the pair's own."""
    kl_div: float | None
    """Measured only where there is a limit to it."""


def values_of(pair: Pair) -> tuple[Array, Array] | None:
    """Both sides of a pair in one shape, to be looked at more closely; None where they cannot be had."""
    opened = _open(pair)
    return None if isinstance(opened, Row) else (opened.ref, opened.cand)


def _open(pair: Pair) -> _Opened | Row:
    """Map a pair; a row at once where nothing can be measured."""
    try:
        ref, cand = pair.reference.read(), pair.candidate.read()
    except (DumpError, AlignError) as error:
        return _unknown(pair, str(error))
    views = reconcile(ref.shape, cand.shape)
    if views is None:
        why = f"shapes {list(ref.shape)} and {list(cand.shape)} need a view that only a rule can name"
        return _unknown(pair, why, (name_of(ref.dtype), name_of(cand.dtype)))
    return _Opened(pair, views, views.apply(ref), views.apply(cand))


def _size(opened: _Opened | Row) -> int:
    return 0 if isinstance(opened, Row) else opened.ref.size


def _weight(batch: Sequence[_Opened | Row]) -> int:
    """Elements of a batch that is worth handing over; 0 if it is small, or so large that all cores share it."""
    elements = sum(map(_size, batch))
    return elements if HANDED_OVER * len(batch) <= elements < SHARED else 0


class _Carried:
    """The error that came into a layer: of its inputs where they were dumped, else of what ran before it."""

    def __init__(self) -> None:
        self.inputs: dict[tuple[str, int, int], float] = {}
        self.before: float | None = None
        self.worst: float | None = None

    def into(self, pair: Pair) -> float | None:
        """What is known to have come into a pair's layer; an input may come from anything that ran before."""
        if pair.reference.is_input:
            return self.worst
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
            self.worst = _worse(self.worst or 0.0, row.diff.rel_l2)


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
