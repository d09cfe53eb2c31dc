"""The interface of a cluster, and the flow of pairs through it: batches out, numbers back, in the order of the pairs.

An engine submits a function with packed arguments and returns a ticket for its result; it knows nothing about tensors.
Dask is one engine (``dask_engine``). Another one needs a class with the methods of ``Engine`` and a line in
``connect``.
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from tensordiff.align.views import Views
from tensordiff.compare.cluster.packing import CannotBeSent, pack, split_by_sendable
from tensordiff.compare.cluster.worker import (
    Installation,
    Refusal,
    Unmeasured,
    installation,
    measure_packed,
    scan_packed,
)
from tensordiff.compare.judge.evidence import Measurement
from tensordiff.compare.measure.dispatch import Stretch, diff_of_stretches, measure_many, stretches_of
from tensordiff.compare.pair_task import PairWork, inputs_of, measurements_of, pair_task
from tensordiff.compare.row import Row, read_pair
from tensordiff.dump.dtypes import name_of
from tensordiff.errors import ClusterError, DumpError, printable

BATCH_PAIRS, BATCH_BYTES = 256, 256 << 20
"""The most that one task measures: enough to keep messages few, but not so much that rows arrive in bursts."""
FIRST_PAIRS = 8
"""Pairs of the first task, which is small so that the first rows arrive soon."""
HUGE_BYTES = 512 << 20
"""Size from which a pair is split into stretches for several workers."""


class Ticket(Protocol):
    """The pending result of a submitted task."""

    def result(self) -> Any:
        """Wait for the result; raises ``ClusterError`` if there will be none."""

    def cancel(self) -> None:
        """Cancel the task."""


class Engine(Protocol):
    """A cluster."""

    @property
    def width(self) -> int:
        """The number of tasks that it works on at a time."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Ticket:
        """Run a function on some worker, and on another one if that worker is lost."""

    def close(self) -> None:
        """Leave the cluster; stop it if it was started here."""


@cache
def connect(address: str) -> Engine:
    """The engine at an address: ``tcp://HOST:PORT`` of a Dask scheduler, or ``local:N`` workers started here."""
    from tensordiff.compare.cluster.dask_engine import DaskEngine

    engine = DaskEngine(address)
    atexit.register(engine.close)
    return engine


class _Batch(NamedTuple):
    """Pairs measured by one task, one pair measured by several tasks, or pairs measured here."""

    works: list[PairWork]
    tickets: list[Ticket]
    """Empty if it is measured here."""
    is_huge: bool = False


def measurements(engine: Engine, works: Iterable[PairWork]) -> Iterator[Measurement | Row]:
    """The measurements of each pair, in order. Stopping early cancels submitted tasks."""
    own = installation()
    waiting: deque[_Batch] = deque()
    try:
        for batch in _batches(works):
            waiting += _submit(engine, batch, own)
            while sum(len(one.tickets) or 1 for one in waiting) > 2 * engine.width + 1:
                yield from _results(waiting.popleft())
        while waiting:
            yield from _results(waiting.popleft())
    finally:
        for one in waiting:
            for ticket in one.tickets:
                ticket.cancel()


def _batches(works: Iterable[PairWork]) -> Iterator[list[PairWork]]:
    batch: list[PairWork] = []
    nbytes, most = 0, FIRST_PAIRS
    for work in works:
        size = _nbytes(work)
        if batch and (len(batch) >= most or nbytes + size > min(BATCH_BYTES, HUGE_BYTES)):
            yield batch
            batch, nbytes, most = [], 0, min(4 * most, BATCH_PAIRS)
        batch.append(work)
        nbytes += size
    if batch:
        yield batch


def _nbytes(work: PairWork) -> int:
    """Bytes of both sides according to their headers; 0 if those cannot be read, since nothing will be measured."""
    try:
        return work.pair.reference.spec.nbytes + work.pair.candidate.spec.nbytes
    except DumpError:
        return 0


def _submit(engine: Engine, works: list[PairWork], own: Installation) -> list[_Batch]:
    if len(works) == 1 and (stretches := _stretches(works[0])):
        tickets = [engine.submit(scan_packed, pack(one), own) for one in stretches]
        return [_Batch(works, tickets, is_huge=True)]
    try:
        return [_Batch(works, [engine.submit(measure_packed, pack(works), own)])]
    except CannotBeSent:
        if len(works) == 1:
            return [_Batch(works, [])]
    _, kept = split_by_sendable(works)
    here = set(map(id, kept))
    return [batch for work in works for batch in _single(engine, work, own, is_here=id(work) in here)]


def _single(engine: Engine, work: PairWork, own: Installation, *, is_here: bool) -> list[_Batch]:
    return [_Batch([work], [])] if is_here else _submit(engine, [work], own)


def _stretches(work: PairWork) -> Sequence[Stretch]:
    """A huge pair in stretches; empty if it is not huge or needs more than its own numbers."""
    if _nbytes(work) < HUGE_BYTES or work.injected or work.golden or work.wants_kl_div:
        return ()
    return stretches_of(work.pair.reference.stored, work.pair.candidate.stored, work.limits.tolerance)


def _results(batch: _Batch) -> Iterator[Measurement | Row]:
    if batch.is_huge:
        yield _joined_stretches(batch)
        return
    if not batch.tickets:
        yield from map(_measure_here, batch.works)
        return
    answer = _unless_refused(batch.tickets[0].result())
    for work, one in zip(batch.works, answer, strict=True):
        yield _explain_unmeasured(work, one.why) if isinstance(one, Unmeasured) else one.measurement(work)


def _joined_stretches(batch: _Batch) -> Measurement | Row:
    (work,) = batch.works
    parts = [_unless_refused(ticket.result()) for ticket in batch.tickets]
    failed = next((part for part in parts if isinstance(part, Unmeasured)), None)
    if failed is not None:
        return _explain_unmeasured(work, failed.why)
    sides = work.pair.reference, work.pair.candidate
    diff = diff_of_stretches(np.concatenate(parts), (sides[0].stored, sides[1].stored), work.limits.tolerance)
    dtypes = name_of(sides[0].spec.dtype), name_of(sides[1].spec.dtype)
    return Measurement(
        pair=work.pair, dtypes=dtypes, views=Views(sides[0].spec.shape), diff=diff, injected=None, golden=None,
        limits=work.limits, kl_div=None,
    )  # fmt: skip


def _unless_refused(answer: Any) -> Any:
    if isinstance(answer, Refusal):
        raise ClusterError(f"a worker of the cluster {printable(answer.why)}")
    return answer


def _measure_here(work: PairWork) -> Measurement | Row:
    values = read_pair(work.pair)
    tasks = [values if isinstance(values, Row) else pair_task(work, values)]
    return measurements_of(tasks, measure_many(inputs_of(tasks)))[0]


def _explain_unmeasured(work: PairWork, why: str) -> Row:
    """The row for a pair that a worker could not measure; raises if it can be measured here, since workers then see
    other files."""
    one = _measure_here(work)
    if isinstance(one, Row):
        return one
    raise ClusterError(
        f"a worker cannot read what can be read here: {printable(why)}; workers need the dumps under the same paths"
    )
