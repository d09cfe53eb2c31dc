"""Measuring an alignment: one row per pair, in order, as soon as it is known.

``Comparer.rows`` is a plain iterator: progress and stopping early are up to the caller. ``measure`` computes the
numbers and ``judge`` says what they mean in the light of the pairs before. A pair that cannot be read, or whose shapes
cannot be reconciled, is a row, too, with verdict ``unknown`` and the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tensordiff.align.index import view_on
from tensordiff.align.match import Alignment, Pair
from tensordiff.align.views import reconcile
from tensordiff.compare.judge.judge import Judge
from tensordiff.compare.judge.measurement import Measurement
from tensordiff.compare.judge.verdict import GoldenErrors
from tensordiff.compare.limits import Limits
from tensordiff.compare.look.logits import compare_logits, has_distributions
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.measure.dispatch import MeasureInput, measure_many
from tensordiff.compare.measure.scheduler import in_batches
from tensordiff.compare.row import PairValues, Row, read_pair, unknown_row
from tensordiff.dump.dtypes import Array, name_of
from tensordiff.dump.model import Entry, EntryKey
from tensordiff.errors import AlignError, DumpError
from tensordiff.util.garbage_collector import gc_paused
from tensordiff.util.mappings import compare_sizes, count_losses, loss_of, put_handler_first, raise_losses

_ViewKey = tuple[EntryKey, str]
"""An entry and the view on it. An expression's entry is made anew by every alignment, so it is found by name."""


@dataclass(frozen=True)
class ThirdDump:
    """The entries of a third dump (an injected or a golden run), by the reference entry they are paired with."""

    entries: Mapping[_ViewKey, Entry] = field(repr=False)

    @classmethod
    def of(cls, alignment: Alignment) -> ThirdDump:
        """From the alignment of the reference with that dump."""
        return cls({_view_key(pair.reference): pair.candidate for pair in alignment.pairs})

    def get(self, reference: Entry) -> Entry | None:
        """The entry that is paired with a reference entry, if any."""
        return self.entries.get(_view_key(reference))


def _view_key(entry: Entry) -> _ViewKey:
    return entry.key, view_on(entry)


@dataclass(frozen=True)
class Comparer:
    """Measures and judges pairs, by these limits and third runs."""

    limits: Limits = field(default_factory=Limits)
    injected: ThirdDump | None = None
    golden: ThirdDump | None = None
    run_dtypes: tuple[str, str] | None = None
    """The types that the runs computed in, as far as that is believed."""

    def rows(self, pairs: Sequence[Pair]) -> Iterator[Row]:
        """Measure pairs in order. Small pairs are measured in batches, so rows come a few at a time."""
        judge = Judge(self.run_dtypes)
        put_handler_first()
        losses = count_losses()
        for batch in in_batches(map(read_pair, pairs), _size):
            with gc_paused():
                tasks = [values if isinstance(values, Row) else self._task(values) for values in batch]
                inputs = (one for task in tasks if isinstance(task, _Task) for one in task.inputs)
                diffs = iter(measure_many(inputs))
                measured = [task if isinstance(task, Row) else _measurement(task, diffs) for task in tasks]
                compare_sizes(array for task in tasks if isinstance(task, _Task) for array in task.arrays)
                lost = _lost_rows(tasks, losses)
                rows = [
                    lost.get(k) or (judge.unmeasured(one) if isinstance(one, Row) else judge.row(one))
                    for k, one in enumerate(measured)
                ]
                lost = _lost_rows(tasks, losses)  # to judge a pair may have read it again
                losses = count_losses()
            yield from (lost.get(k) or row for k, row in enumerate(rows)) if lost else rows

    def _task(self, values: PairValues) -> _Task | Row:
        """What is to be measured for a pair; a row with verdict ``unknown`` where that is impossible."""
        pair, _, ref, cand = values
        limits = self.limits.for_pair(pair.name, pair.reference.port)
        wants_kl_div = limits.kl_div is not None and not pair.reference.is_input
        if wants_kl_div and not (has_distributions(ref) and has_distributions(cand)):
            return unknown_row(pair, f"kl_div is of distributions, and shape {list(ref.shape)} holds none")
        before = count_losses()
        try:
            injected = self._injected_inputs(pair, ref, limits) if self.injected else []
            golden = self._golden_inputs(pair, ref, cand) if self.golden else []
            raise_losses(before, pair.reference.name)
        except (DumpError, AlignError) as error:
            return unknown_row(pair, str(error))
        inputs = [(ref, cand, limits.tolerance), *injected, *golden]
        return _Task(
            values=values, limits=limits, wants_kl_div=wants_kl_div, inputs=inputs,
            has_injected=bool(injected), has_golden=bool(golden),
        )  # fmt: skip

    def _injected_inputs(self, pair: Pair, ref: Array, limits: Limits) -> list[MeasureInput]:
        """The reference, and what the candidate computed from the reference's inputs."""
        entry = self.injected.get(pair.reference) if self.injected else None
        # A layer of an injected run that could not be given the right inputs says nothing about itself.
        if entry is None or (entry.origin is not None and entry.origin.injected is None):
            return []
        other = entry.read()
        views = reconcile(ref.shape, other.shape)
        return [(views.apply(ref), views.apply(other), limits.tolerance)] if views else []

    def _golden_inputs(self, pair: Pair, ref: Array, cand: Array) -> list[MeasureInput]:
        """The golden run, with each side."""
        entry = self.golden.get(pair.reference) if self.golden else None
        if entry is None:
            return []
        golden = entry.read()
        views = reconcile(golden.shape, ref.shape)
        return [(views.apply(golden), views.apply(side), None) for side in (ref, cand)] if views else []


class _Task(NamedTuple):
    """A pair and everything that is to be measured for it."""

    values: PairValues
    limits: Limits
    """The limits of this pair."""
    wants_kl_div: bool
    inputs: list[MeasureInput]
    """The pair itself, then the injected run's and the golden run's, where they exist."""
    has_injected: bool
    has_golden: bool

    @property
    def arrays(self) -> Iterator[Array]:
        """All that is read for it."""
        return (array for ref, cand, _ in self.inputs for array in (ref, cand))


def _measurement(task: _Task, diffs: Iterator[Diff]) -> Measurement:
    """What was measured for a pair, taken from the diffs of all tasks."""
    pair, views, ref, cand = task.values
    diff = next(diffs)
    injected = next(diffs) if task.has_injected else None
    golden = GoldenErrors(next(diffs).rel_l2, next(diffs).rel_l2) if task.has_golden else None
    return Measurement(
        pair=pair, dtypes=(name_of(ref.dtype), name_of(cand.dtype)), views=views, diff=diff, injected=injected,
        golden=golden, limits=task.limits, kl_div=compare_logits(ref, cand).kl_div if task.wants_kl_div else None,
    )  # fmt: skip


def _lost_rows(tasks: Sequence[_Task | Row], losses: int) -> dict[int, Row]:
    """An ``unknown`` row, by number, for each task of which a file became shorter while it was read."""
    if not count_losses():
        return {}
    lost: dict[int, Row] = {}
    for k, task in enumerate(tasks):
        if isinstance(task, _Task):
            pair = task.values.pair
            if error := loss_of(task.arrays, losses, pair.reference.name):
                lost[k] = unknown_row(pair, str(error))
    return lost


def _size(values: PairValues | Row) -> int:
    return 0 if isinstance(values, Row) else values.ref.size
