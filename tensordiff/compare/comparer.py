"""Measure an alignment: one row per pair, in order, as soon as it is known.

``Comparer.rows`` is a plain iterator, so the caller can show progress and stop early. ``measure`` computes the numbers;
``judge`` decides what they mean, given the pairs before. A pair that cannot be read, or whose shapes cannot be
reconciled, becomes a row with verdict ``unknown`` and the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tensordiff.align.index import parts_of, view_on
from tensordiff.align.match import Alignment, Pair
from tensordiff.compare.judge.judge import Judge
from tensordiff.compare.judge.pairing import Pairing
from tensordiff.compare.judge.precision import Precision
from tensordiff.compare.judge.verdict import EIGHT_BITS
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.dispatch import measure_many
from tensordiff.compare.measure.scheduler import in_batches
from tensordiff.compare.pair_task import PairWork, inputs_of, lost_rows, measurements_of, pair_task
from tensordiff.compare.read_ahead import read_ahead
from tensordiff.compare.row import PairValues, Row, read_pair, unknown_row
from tensordiff.dump.arithmetic import Tf32
from tensordiff.dump.model import Entry, EntryKey
from tensordiff.errors import DumpError
from tensordiff.util.garbage_collector import gc_paused
from tensordiff.util.mappings import count_losses, install_handler, raise_losses

_ViewKey = tuple[EntryKey, str]
"""An entry and the view on it. Every alignment creates new entries for expressions, so they are looked up by name."""


@dataclass(frozen=True)
class ThirdDump:
    """The entries of a third dump (an injected or a golden run), by the reference entry that each is paired with."""

    entries: Mapping[_ViewKey, Entry] = field(repr=False)

    @classmethod
    def of(cls, alignment: Alignment) -> ThirdDump:
        """Build it from the alignment of the reference with that dump."""
        return cls({_view_key(pair.reference): pair.candidate for pair in alignment.pairs})

    def get(self, reference: Entry) -> Entry | None:
        """The entry that is paired with a reference entry, if any."""
        return self.entries.get(_view_key(reference))


def _view_key(entry: Entry) -> _ViewKey:
    return entry.key, view_on(entry)


@dataclass(frozen=True)
class Comparer:
    """Measures and judges pairs, by the given limits and third runs."""

    limits: Limits = field(default_factory=Limits)
    injected: ThirdDump | None = None
    golden: ThirdDump | None = None
    run_dtypes: tuple[str, str] | None = None
    """The types that the runs computed in, as far as they can be trusted."""
    are_parameters: bool = False
    """Whether the dumps are checkpoints rather than runs. Nothing runs before a parameter, so each is judged by
    itself."""
    in_eight_bits: Collection[str] = ()
    """Layers of the reference whose counterparts round activations to 8 bits before they multiply."""
    reference_tf32: Tf32 = "nowhere"
    """Where the reference computed in TF32, which limits its precision there."""
    has_experts: bool | None = None
    """Whether the model has experts, to which tokens may be routed differently; None if that is unknown."""
    cluster: str | None = None
    """The address of the cluster whose workers measure; None measures in this process."""
    reads_ahead: bool = False
    """Whether a side lies in a store, so that most of the time is spent waiting for reads."""
    batch_bytes: int | None = None
    """The bytes of a side that fill a batch; None if values waiting to be judged take no memory of their own."""

    def alone(self) -> Comparer:
        """For pairs that are judged without their history, any of which may have been rounded to 8 bits."""
        return replace(self, run_dtypes=(EIGHT_BITS, EIGHT_BITS)) if self.in_eight_bits else self

    def rows(self, pairs: Sequence[Pair], pairing: Pairing | None = None) -> Iterator[Row]:
        """Measure pairs in order. Small pairs are measured in batches, so rows arrive a few at a time.

        ``pairing`` covers the whole runs, if ``pairs`` are only some of their pairs.
        """
        precision = Precision(self.run_dtypes, self.in_eight_bits, self.reference_tf32)
        has_gradients = any(pair.reference.is_gradient for pair in pairs)
        judge = Judge(precision, pairing or Pairing(pairs), has_gradients=has_gradients, has_experts=self.has_experts)
        install_handler()
        if self.cluster is not None:
            yield from self._rows_by_cluster(judge, pairs, self.cluster)
            return
        losses = count_losses()
        read = read_ahead(pairs) if self.reads_ahead else map(read_pair, pairs)
        for batch in in_batches(read, _elements_of, None if self.batch_bytes is None else self._is_full):
            with gc_paused():
                tasks = [
                    values if isinstance(values, Row) else pair_task(self._work(values.pair), values)
                    for values in batch
                ]
                measured = measurements_of(tasks, measure_many(inputs_of(tasks)))
                lost = lost_rows(tasks, losses)
                rows = []
                for k, one in enumerate(measured):
                    judge = Judge(Precision(self.run_dtypes)) if self.are_parameters else judge
                    rows.append(lost.get(k) or (judge.unmeasured(one) if isinstance(one, Row) else judge.row(one)))
                lost = lost_rows(tasks, losses)  # judging may have read a pair again
                losses = count_losses()
            yield from (lost.get(k) or row for k, row in enumerate(rows)) if lost else rows
        judge.release()

    def _rows_by_cluster(self, judge: Judge, pairs: Sequence[Pair], address: str) -> Iterator[Row]:
        """The same rows, measured by a cluster's workers and judged here, which may read a pair here."""
        from tensordiff.compare.cluster.engine import connect, measurements

        for one in measurements(connect(address), map(self._work, pairs)):
            losses = count_losses()
            judge = Judge(Precision(self.run_dtypes)) if self.are_parameters else judge
            row = judge.unmeasured(one) if isinstance(one, Row) else judge.row(one)
            try:
                raise_losses(losses, row.pair.reference.name)
            except DumpError as error:
                row = unknown_row(row.pair, str(error))
            yield row
        judge.release()

    def _is_full(self, batch: Sequence[PairValues | Row]) -> bool:
        if self.batch_bytes is None:
            return False
        sides = zip(*((one.pair.reference, one.pair.candidate) for one in batch), strict=True)
        return any(sum(map(bytes_behind, side)) >= self.batch_bytes for side in sides)

    def _work(self, pair: Pair) -> PairWork:
        """A pair with its limits and its entries of third runs."""
        return PairWork(
            pair,
            self.limits.for_pair(pair.name, pair.reference.port),
            None if self.injected is None else self.injected.get(pair.reference),
            None if self.golden is None else self.golden.get(pair.reference),
        )


def bytes_behind(entry: Entry) -> int:
    """Bytes of the data that an entry is read from, however small a view of it is."""
    return sum(part.spec.nbytes for part in parts_of(entry))


def _elements_of(values: PairValues | Row) -> int:
    return 0 if isinstance(values, Row) else values.ref.size
