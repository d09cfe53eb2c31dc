"""Working ahead: results in order, several under way at once.

Handing a pair to another thread costs more than measuring a small one, and a tensor that is large
enough is shared by all cores anyway. In between, the cores take batches of pairs in turn.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypeVar

BATCH = 1 << 20
"""Weight of a batch: waking another thread takes as long as measuring some 100,000 elements."""
T = TypeVar("T")
R = TypeVar("R")


@cache
def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def pool() -> ThreadPoolExecutor:
    """Threads for work that lets go of Python's lock, beside the one that asks for it."""
    return ThreadPoolExecutor(max(1, cores() - 1), thread_name_prefix="tensordiff")


def in_order(work: Callable[[T], R], items: Iterable[T], weight: Callable[[T], int]) -> Iterator[R]:
    """Work on items, giving results in their order; those with a weight in other threads, in batches, a few ahead."""
    ahead: deque[Future[list[R]] | list[R]] = deque()
    batch: list[T] = []
    load = 0
    try:
        for item in items:
            heavy = weight(item)
            if not heavy and not batch and not ahead:
                yield work(item)  # the common case: nothing is under way, and it is not worth a thread
                continue
            if heavy:
                batch.append(item)
                load += heavy
            if batch and (load >= BATCH or not heavy):
                ahead.append(_start(work, batch, ahead))
                batch, load = [], 0
            if not heavy:
                ahead.append([work(item)])
            while len(ahead) > 2 * cores():
                yield from _result(ahead.popleft())
        if batch:
            ahead.append(_start(work, batch, ahead))
        while ahead:
            yield from _result(ahead.popleft())
    finally:
        for job in ahead:
            if isinstance(job, Future):
                job.cancel()


def _start(
    work: Callable[[T], R], batch: list[T], ahead: Iterable[Future[list[R]] | list[R]]
) -> Future[list[R]] | list[R]:
    """Give a batch to another thread if one is idle, else do it here: a thread that only waits leaves a core idle."""
    busy = sum(isinstance(job, Future) and not job.done() for job in ahead)
    return pool().submit(_work_on, work, batch) if busy < cores() - 1 else _work_on(work, batch)


def _work_on(work: Callable[[T], R], batch: list[T]) -> list[R]:
    return [work(item) for item in batch]


def _result(job: Future[list[R]] | list[R]) -> list[R]:
    return job.result() if isinstance(job, Future) else job
