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
from typing import Generic, TypeVar

BATCH = 1 << 19
"""Elements of a batch: waking another thread takes as long as measuring some 100,000."""
MOST = 64
"""Items of a batch, however small."""
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


def in_batches(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Items a few at a time, the first alone, then ever more: what is asked for is shown at once, and costs little."""
    batch: list[T] = []
    load, most = 0, 1
    for item in items:
        batch.append(item)
        load += size(item)
        if load >= BATCH or len(batch) >= most:
            yield batch
            batch, load, most = [], 0, min(2 * most, MOST)
    if batch:
        yield batch


def in_order(work: Callable[[T], R], items: Iterable[T], weight: Callable[[T], int]) -> Iterator[R]:
    """Work on items, giving results in their order; those with a weight in other threads, a few ahead."""
    ahead: deque[Future[R] | _Done[R]] = deque()
    try:
        for item in items:
            heavy = weight(item)
            if not heavy and not ahead:
                yield work(item)  # the common case: nothing is under way, and it is not worth a thread
                continue
            ahead.append(_start(work, item, ahead) if heavy else _Done(work(item)))
            while len(ahead) > 2 * cores() or (ahead and ahead[0].done()):
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        for job in ahead:
            job.cancel()


class _Done(Generic[R]):
    """A result that is there, beside those that are under way."""

    def __init__(self, result: R) -> None:
        self._result = result

    def done(self) -> bool:
        return True

    def result(self) -> R:
        return self._result

    def cancel(self) -> None:
        """Nothing is under way."""


def _start(work: Callable[[T], R], item: T, ahead: Iterable[Future[R] | _Done[R]]) -> Future[R] | _Done[R]:
    """Give an item to another thread if one is idle, else do it here: a thread that only waits leaves a core idle."""
    busy = sum(not job.done() for job in ahead)
    return pool().submit(work, item) if busy < cores() - 1 else _Done(work(item))
