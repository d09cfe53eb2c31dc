"""Several at a time: pairs in batches, and results in order while several are under way.

Calling the compiled pass costs as much as measuring a small pair, so small pairs are measured in batches. Where
the work on one tensor is cut into parts, the cores take them in turn.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypeVar

BATCH = 1 << 21
"""Elements of a batch: a few milliseconds, so that rows come as if one by one."""
FIRST, MOST = 8, 64
"""Items of the first batch and of any, however small."""
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
    """Items a few at a time, then ever more: what is asked for is shown at once, and costs little."""
    batch: list[T] = []
    load, most = 0, FIRST
    for item in items:
        batch.append(item)
        load += size(item)
        if load >= BATCH or len(batch) >= most:
            yield batch
            batch, load, most = [], 0, min(2 * most, MOST)
    if batch:
        yield batch


def in_order(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Work on items on all cores, a few ahead, giving results in their order."""
    ahead: deque[Future[R]] = deque()
    try:
        for item in items:
            ahead.append(pool().submit(work, item))
            if len(ahead) > cores():
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        for job in ahead:
            job.cancel()
