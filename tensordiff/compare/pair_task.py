"""The steps from a pair's entries to its numbers: what to measure for it, and what was measured.

The same functions read and measure here and on a cluster's workers. Judging is not part of it, since it needs the pairs
before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from tensordiff.align.match import Pair
from tensordiff.align.views import reconcile
from tensordiff.compare.judge.evidence import Measurement
from tensordiff.compare.judge.verdict import GoldenErrors
from tensordiff.compare.limits import Limits
from tensordiff.compare.look.logits import compare_logits, has_distributions
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.measure.dispatch import MeasureInput
from tensordiff.compare.row import PairValues, Row, unknown_row
from tensordiff.dump.dtypes import Array, DType, name_of
from tensordiff.dump.model import Entry
from tensordiff.errors import AlignError, DumpError
from tensordiff.util.mappings import compare_sizes, count_losses, loss_of, raise_losses

_new = tuple.__new__  # makes a named tuple in half the time; for those that every pair needs


class PairWork(NamedTuple):
    """A pair with its limits and its entries of third runs."""

    pair: Pair
    limits: Limits
    """The limits of this pair."""
    injected: Entry | None = None
    golden: Entry | None = None

    @property
    def wants_kl_div(self) -> bool:
        """Whether the KL divergence has a limit; it is measured only then."""
        return self.limits.kl_div is not None and not self.pair.reference.is_input


class PairTask(NamedTuple):
    """A pair whose values are mapped, and everything to measure for it."""

    values: PairValues
    work: PairWork
    inputs: list[MeasureInput]
    """The pair itself, then the injected run's and the golden run's pairs, if they exist."""
    has_injected: bool
    has_golden: bool

    @property
    def arrays(self) -> Iterator[Array]:
        """All arrays that are read for it."""
        return (array for ref, cand, _ in self.inputs for array in (ref, cand))


def pair_task(work: PairWork, values: PairValues) -> PairTask | Row:
    """What to measure for a pair; a row with verdict ``unknown`` if that is impossible."""
    pair, limits = work.pair, work.limits
    _, _, ref, cand = values
    plain = (ref, cand, limits.tolerance)
    if limits.kl_div is None and work.injected is None and work.golden is None:  # as nearly all
        return _new(PairTask, (values, work, [plain], False, False))
    if work.wants_kl_div and not (has_distributions(ref) and has_distributions(cand)):
        return unknown_row(pair, f"kl_div is of distributions, and shape {list(ref.shape)} holds none")
    before = count_losses()
    try:
        injected = _injected_inputs(work.injected, ref, limits) if work.injected else []
        golden = _golden_inputs(work.golden, ref, cand) if work.golden else []
        raise_losses(before, pair.reference.name)
    except (DumpError, AlignError) as error:
        return unknown_row(pair, str(error))
    return PairTask(values, work, [plain, *injected, *golden], bool(injected), bool(golden))


def _injected_inputs(entry: Entry, ref: Array, limits: Limits) -> list[MeasureInput]:
    """The reference, and the candidate's result from the reference's inputs."""
    # A layer of an injected run that did not get the right inputs says nothing about itself.
    if entry.origin is not None and entry.origin.injected is None:
        return []
    other = entry.read()
    views = reconcile(ref.shape, other.shape)
    return [(views.apply(ref), views.apply(other), limits.tolerance)] if views else []


def _golden_inputs(entry: Entry, ref: Array, cand: Array) -> list[MeasureInput]:
    """The golden run, paired with each side."""
    golden = entry.read()
    views = reconcile(golden.shape, ref.shape)
    return [(views.apply(golden), views.apply(side), None) for side in (ref, cand)] if views else []


def inputs_of(tasks: Sequence[PairTask | Row]) -> Iterator[MeasureInput]:
    """Everything to measure for some pairs."""
    return (one for task in tasks if isinstance(task, PairTask) for one in task.inputs)


def measurements_of(tasks: Sequence[PairTask | Row], diffs: Iterable[Diff]) -> list[Measurement | Row]:
    """The measurements of each pair, from the diffs of their ``inputs_of``."""
    diffs = iter(diffs)
    measured = [task if isinstance(task, Row) else _measurement(task, diffs) for task in tasks]
    compare_sizes(array for task in tasks if isinstance(task, PairTask) for array in task.arrays)
    return measured


def _measurement(task: PairTask, diffs: Iterator[Diff]) -> Measurement:
    """The measurement of one pair, taking its diffs from those of all tasks."""
    pair, views, ref, cand = task.values
    diff = next(diffs)
    injected = next(diffs) if task.has_injected else None
    golden = GoldenErrors(next(diffs).rel_l2, next(diffs).rel_l2) if task.has_golden else None
    wants_kl_div = task.work.limits.kl_div is not None and task.work.wants_kl_div
    kl_div = compare_logits(ref, cand).kl_div if wants_kl_div else None
    dtypes, limits = _names_of(ref.dtype, cand.dtype), task.work.limits
    return _new(Measurement, (pair, dtypes, views, diff, injected, golden, limits, kl_div))


@lru_cache(maxsize=512)
def _names_of(ref: DType, cand: DType) -> tuple[str, str]:
    """The names of two types; the tuple is shared by all pairs of them."""
    return name_of(ref), name_of(cand)


def lost_rows(tasks: Sequence[PairTask | Row], losses: int) -> dict[int, Row]:
    """An ``unknown`` row, by number, for each task whose file became shorter while it was read."""
    if not count_losses():
        return {}
    lost: dict[int, Row] = {}
    for k, task in enumerate(tasks):
        if isinstance(task, PairTask):
            pair = task.values.pair
            if error := loss_of(task.arrays, losses, pair.reference.name):
                lost[k] = unknown_row(pair, str(error))
    return lost
