"""Several at a time: pairs in batches, and results in order while several are under way.

Calling the compiled pass costs as much as measuring a small pair, so small pairs are measured in batches. Where
the work on one tensor is cut into parts, the cores take them in turn.

Pairs that lie whole in memory, read where they lie by all cores.

Every pair is cut into pieces of a fixed size, and each core takes the next piece until none is left: a core that
wakes late, or is busy with something else, delays nobody. Pieces are put together in their order, so that the
numbers do not depend on who took which, nor on how many cores there are.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, lru_cache
from types import ModuleType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.measure.diff import Cells, empty_cells
from tensordiff.compare.measure.dtype_plan import How, Tolerance
from tensordiff.dump.dtypes import Array, DType

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


PIECE = 1 << 20
"""Elements of a piece: each begins to look for the largest error anew, which costs some thousand elements' time."""
_WORTH_SHARING = 1 << 19  # elements that are measured while another core wakes up and Python changes hands


Piece = tuple[int, int, int, int, int]
"""Both addresses, elements, where the piece begins, elements of the whole pair."""


@cache
def load_kernels() -> ModuleType:
    """The compiled passes. Loading takes a fifth of a second, which small dumps never pay."""
    from tensordiff.compare.measure import kernels

    return kernels


def scan_all(pairs: Sequence[tuple[How, Array, Array]]) -> Cells:
    """The cells of pairs that lie whole in memory, a row each."""
    cut = [_pieces(ref, cand) for _, ref, cand in pairs]
    firsts = np.cumsum([0, *map(len, cut)])
    cells = empty_cells([piece[4] for pieces in cut for piece in pieces])
    for how, rows in _by_how(pairs, cut, firsts.tolist()).items():
        _scan_on_all_cores(how, np.array(rows), cells)
    if len(cells) == len(pairs):
        return cells
    whole = empty_cells([ref.size for _, ref, _ in pairs])
    load_kernels().join_pieces(cells, firsts, whole)
    return whole


def _by_how(
    pairs: Sequence[tuple[How, Array, Array]], cut: Sequence[list[Piece]], firsts: Sequence[int]
) -> dict[How, list[tuple[int, ...]]]:
    """The pieces of pairs that are read alike, each with its row of cells."""
    found: dict[How, list[tuple[int, ...]]] = {}
    latest, rows = None, []
    for (how, _, _), pieces, first in zip(pairs, cut, firsts, strict=False):
        if how is not latest:  # mostly it is, and looking it up takes longer than all the rest
            latest, rows = how, found.setdefault(how, [])
        rows += [(*piece, first + k) for k, piece in enumerate(pieces)]
    return found


def _pieces(ref: Array, cand: Array) -> list[Piece]:
    size, ours, theirs = ref.size, _address(ref), _address(cand)
    if size <= PIECE:
        return [(ours, theirs, size, 0, size)]
    step, other = ref.itemsize, cand.itemsize
    return [
        (ours + begin * step, theirs + begin * other, min(PIECE, size - begin), begin, size)
        for begin in range(0, size, PIECE)
    ]


def _address(array: Array) -> int:
    """Where an array's values begin."""
    return _pointer(id(array) + _HEAD).value if _PEEKS else array.ctypes.data


# The first thing an array object holds is that address: all that is compiled for numpy reads it there. Asking numpy
# makes three objects, which takes as long as measuring a small pair. Tried on an array, lest an interpreter differs.
_pointer, _HEAD = ctypes.c_size_t.from_address, object.__basicsize__
_PEEKS = (probe := np.zeros(1)).ctypes.data == _pointer(id(probe) + _HEAD).value


def scan_part(how: How, ref: Array, cand: Array, offset: int, whole: int) -> Cells:
    """The cells of one part, in memory of its own, of a pair of so many elements."""
    cells = empty_cells([whole])
    row = (_address(ref), _address(cand), ref.size, offset, whole, 0)
    _scan_here(how, np.zeros(1, np.int64), np.array([row]), cells)
    return cells.reshape(-1)


def _scan_on_all_cores(how: How, table: NDArray[np.int64], cells: Cells) -> None:
    """Let every core take pieces until none is left; one that did not get to begin is not waited for."""
    taken = np.zeros(1, np.int64)
    is_shared = len(table) > 1 and table[:, 2].sum() >= _WORTH_SHARING
    others = [pool().submit(_scan_here, how, taken, table, cells) for _ in range(cores() - 1 if is_shared else 0)]
    _scan_here(how, taken, table, cells)
    for job in others:
        if not job.cancel():
            job.result()


def _scan_here(how: How, taken: NDArray[np.int64], table: NDArray[np.int64], cells: Cells) -> None:
    bounds = _bounds(how.tolerance, how.enter[0] == np.float64)
    load_kernels().scan_taken(taken, table, *map(_like, how.enter), *bounds, how.splits_ties, cells)


@cache
def _like(dtype: DType) -> Array:
    """What tells the compiled pass of which type the memory at an address is."""
    return np.empty(0, dtype)


@lru_cache(maxsize=256)
def _bounds(tolerance: Tolerance, wide: bool) -> tuple[Array, Array]:
    """The tolerance; and, in the tensors' precision, a hair under and over it and when sums of squares vanish."""
    real, hair, vanishing = ("f8", 4e-15, 1e-290) if wide else ("f4", 1e-6, 1e-34)
    least = np.finfo(real).smallest_subnormal  # nothing at all would count what is equal as the nearest outside
    under = [max(tolerance.atol * (1 - hair), least), tolerance.rtol * (1 - hair)]
    return np.array([tolerance.atol, tolerance.rtol], np.float64), np.array([*under, vanishing], real)
