"""Measuring an alignment: one row a pair, in order, as soon as it is known.

The engine is an iterator and nothing more: who shows progress or stops early is not its business, and what the
numbers mean is said in ``judging``, after all that came before.
A pair that cannot be read or whose shapes nobody reconciled is a row too, with verdict ``unknown``
and the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tensordiff.align.index import view_on
from tensordiff.align.match import Alignment, Pair
from tensordiff.align.views import reconcile
from tensordiff.compare.judge.judge import Judge, Measurement
from tensordiff.compare.judge.verdict import GoldenErrors
from tensordiff.compare.limits import Limits
from tensordiff.compare.look.logits import compare_logits, has_distributions
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.measure.dispatch import MeasureInput, measure_many
from tensordiff.compare.measure.scheduler import in_batches
from tensordiff.compare.row import PairValues, read_pair, unknown_row
from tensordiff.compare.row import Row as Row
from tensordiff.compare.row import values_of as values_of
from tensordiff.dump.dtypes import Array, name_of
from tensordiff.dump.model import Entry
from tensordiff.errors import AlignError, DumpError
from tensordiff.util.garbage_collector import gc_paused

MANY = 5_000
"""Pairs of a run for which the compiled pass is worth loading, however small they are."""


_Place = tuple[str, str, int, int]
"""Name, view, step and call."""


@dataclass(frozen=True)
class ThirdDump:
    """Entries of a third dump, found by the reference entry they answer."""

    entries: Mapping[_Place, Entry] = field(repr=False)
    """By what they are called: an expression's entry is made anew by every alignment."""

    @classmethod
    def of(cls, alignment: Alignment) -> ThirdDump:
        """From the alignment of the reference with that dump."""
        return cls({_place(pair.reference): pair.candidate for pair in alignment.pairs})

    def get(self, reference: Entry) -> Entry | None:
        """The entry that answers a reference entry, if any."""
        return self.entries.get(_place(reference))


def _place(entry: Entry) -> _Place:
    return entry.name, view_on(entry), entry.step, entry.call


@dataclass(frozen=True)
class Engine:
    """All that measuring needs beside the pairs."""

    limits: Limits = field(default_factory=Limits)
    injected: ThirdDump | None = None
    golden: ThirdDump | None = None

    def rows(self, pairs: Sequence[Pair]) -> Iterator[Row]:
        """Measure pairs, in order; a row comes as soon as it and the few that are measured with it are known."""
        judging, compiled = Judge(), len(pairs) >= MANY or None
        for batch in in_batches(map(read_pair, pairs), _size):
            with gc_paused():
                measured = self._measure(batch, compiled)
                rows = [found if isinstance(found, Row) else judging.row(found) for found in measured]
            yield from rows

    def _measure(self, batch: Sequence[PairValues | Row], compiled: bool | None) -> list[Measurement | Row]:
        """All that needs no other pair, for a few pairs at once."""
        asked = [opened if isinstance(opened, Row) else self._ask(opened) for opened in batch]
        sides = (sides for ask in asked if isinstance(ask, _Asked) for sides in ask.sides)
        diffs = iter(measure_many(sides, compiled=compiled))
        return [_answer(ask, diffs) if isinstance(ask, _Asked) else ask for ask in asked]

    def _ask(self, opened: PairValues) -> _Asked | Row:
        """What is to be measured of a pair; a row at once where it cannot be."""
        pair, _, ref, cand = opened
        limits = self.limits.for_pair(pair.name, pair.reference.port)
        wants_kl_div = limits.kl_div is not None and not pair.reference.is_input
        if wants_kl_div and not (has_distributions(ref) and has_distributions(cand)):
            return unknown_row(pair, f"kl_div is of distributions, and shape {list(ref.shape)} holds none")
        sides: list[MeasureInput] = [(ref, cand, limits.tolerance)]
        try:
            injected = self._injected_sides(pair, ref, limits) if self.injected else []
            golden = self._golden_sides(pair, ref, cand) if self.golden else []
        except (DumpError, AlignError) as error:
            return unknown_row(pair, str(error))
        return _Asked(opened, limits, wants_kl_div, sides + injected + golden, bool(injected), bool(golden))

    def _injected_sides(self, pair: Pair, ref: Array, limits: Limits) -> list[MeasureInput]:
        """What the candidate gave with the reference's inputs, beside the reference."""
        entry = self.injected.get(pair.reference) if self.injected else None
        # A layer of an injected run that could not be given the right inputs says nothing of itself.
        if entry is None or (entry.origin is not None and entry.origin.injected is None):
            return []
        other = entry.read()
        seen = reconcile(ref.shape, other.shape)
        return [(seen.apply(ref), seen.apply(other), limits.tolerance)] if seen else []

    def _golden_sides(self, pair: Pair, ref: Array, cand: Array) -> list[MeasureInput]:
        """Each side beside the golden."""
        entry = self.golden.get(pair.reference) if self.golden else None
        if entry is None:
            return []
        golden = entry.read()
        seen = reconcile(golden.shape, ref.shape)
        return [(seen.apply(golden), seen.apply(side), None) for side in (ref, cand)] if seen else []


class _Asked(NamedTuple):
    """A pair and all that is to be measured of it."""

    opened: PairValues
    limits: Limits
    """Those that are the pair's own."""
    wants_kl_div: bool
    sides: list[MeasureInput]
    """The pair itself; then, where they are there, the injected run's and the golden's."""
    has_injected: bool
    has_golden: bool


def _answer(asked: _Asked, diffs: Iterator[Diff]) -> Measurement:
    """What was measured of a pair, taken from all that was measured."""
    pair, views, ref, cand = asked.opened
    diff = next(diffs)
    injected = next(diffs) if asked.has_injected else None
    golden = GoldenErrors(next(diffs).rel_l2, next(diffs).rel_l2) if asked.has_golden else None
    kl_div = compare_logits(ref, cand).kl_div if asked.wants_kl_div else None
    dtypes = name_of(ref.dtype), name_of(cand.dtype)
    return Measurement(pair, dtypes, views, diff, injected, golden, asked.limits, kl_div)


def _size(opened: PairValues | Row) -> int:
    return 0 if isinstance(opened, Row) else opened.ref.size
