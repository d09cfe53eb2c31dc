"""Cores, batches and pieces: how much is measured in one call, and by which threads.

Calling a pass costs as much as measuring a small pair, so small pairs are measured in batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

BATCH = 1 << 21
"""Elements in a batch: a few milliseconds of work, so that rows still seem to arrive one by one."""
FIRST, MOST = 8, 64
"""Maximum number of items in the first batch, and in any batch."""
PIECE = 1 << 20
"""Elements in a piece of a pair. Each piece searches its own maximum, which costs as much as a thousand elements."""
T = TypeVar("T")


@cache
def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def pool() -> ThreadPoolExecutor:
    """Threads for work that releases the GIL, in addition to the calling thread."""
    return ThreadPoolExecutor(max(1, cores() - 1), thread_name_prefix="tensordiff")


def in_batches(
    items: Iterable[T], size: Callable[[T], int], is_full: Callable[[list[T]], bool] | None = None
) -> Iterator[list[T]]:
    """Group items into batches, small ones first so that the first results arrive at once; ``is_full`` may end one
    early."""
    batch: list[T] = []
    load, most = 0, FIRST
    for item in items:
        batch.append(item)
        load += size(item)
        if load >= BATCH or len(batch) >= most or (is_full is not None and is_full(batch)):
            yield batch
            batch, load, most = [], 0, min(2 * most, MOST)
    if batch:
        yield batch
