"""Spreading work over the cores: batches of small pairs, pieces of large ones, results in order.

Calling the compiled pass costs as much as measuring a small pair, so small pairs are measured in batches. A large pair
is cut into pieces of a fixed size, and each core takes the next piece until none is left; a core that is busy with
something else delays nobody. Pieces are summed in their order, so the numbers depend neither on which core took which
piece nor on how many cores there are.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.measure.diff import Cells, empty_cells
from tensordiff.compare.measure.dtype_plan import PassOptions, Tolerance
from tensordiff.dump.dtypes import Array, DType

BATCH = 1 << 21
"""Elements in a batch: a few milliseconds of work, so that rows still seem to come one by one."""
FIRST, MOST = 8, 64
"""Most items in the first batch, and in any."""
T = TypeVar("T")
R = TypeVar("R")


@cache
def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def pool() -> ThreadPoolExecutor:
    """Threads for work that releases the GIL, beside the calling thread."""
    return ThreadPoolExecutor(max(1, cores() - 1), thread_name_prefix="tensordiff")


def in_batches(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Group items into batches, small ones first, so that the first results come at once."""
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
    """Work on items on all cores, a few ahead of the consumer, and yield the results in order."""
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
"""Elements in a piece. Each searches its largest error anew, which costs as much as a thousand elements."""
_MOST_IN_FLOAT32 = 1e30  # of a tolerance: its product with a value may be larger, and then allows any error
_WORTH_SHARING = 1 << 19  # elements one core measures in the time that another one needs to wake up


Piece = tuple[int, int, int, int, int]
"""Addresses of both sides, elements in the piece, where it begins, elements of the whole pair."""


_SETTINGS_OF_NUMBA = Path(".numba_config.yaml")


@cache
def has_kernels() -> bool:
    """Whether there is a compiled pass; where there is none, numpy measures everything.

    numba obeys a file of settings in the current folder, which may be a stranger's, as soon as it is imported.
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0" or ("numba" not in sys.modules and _SETTINGS_OF_NUMBA.exists()):
        return False
    try:
        load_kernels()
    except ImportError:  # numba, or the LLVM it comes with, is not installed whole
        return False
    return True


@cache
def load_kernels() -> ModuleType:
    """The compiled pass. Importing it takes a fifth of a second, which small dumps never pay."""
    from tensordiff.compare.measure import kernels

    return kernels


def scan_all(pairs: Sequence[tuple[PassOptions, Array, Array]]) -> Cells:
    """Measure pairs in place, on all cores; one row of cells a pair."""
    cut = [_pieces(ref, cand) for _, ref, cand in pairs]
    firsts = np.cumsum([0, *map(len, cut)])
    cells = empty_cells([piece[4] for pieces in cut for piece in pieces])
    for options, rows in _by_options(pairs, cut, firsts.tolist()).items():
        _scan_on_all_cores(options, np.array(rows), cells)
    if len(cells) == len(pairs):
        return cells
    whole = empty_cells([ref.size for _, ref, _ in pairs])
    load_kernels().join_pieces(cells, firsts, whole)
    return whole


def _by_options(
    pairs: Sequence[tuple[PassOptions, Array, Array]], cut: Sequence[list[Piece]], firsts: Sequence[int]
) -> dict[PassOptions, list[tuple[int, ...]]]:
    """The pieces of all pairs, by options, each with the row of cells it fills."""
    pieces_by_options: dict[PassOptions, list[tuple[int, ...]]] = {}
    latest, rows = None, []
    for (options, _, _), pieces, first in zip(pairs, cut, firsts, strict=False):
        if options is not latest:  # it mostly is the same, and hashing it would cost more than all the rest
            latest, rows = options, pieces_by_options.setdefault(options, [])
        rows += [(*piece, first + k) for k, piece in enumerate(pieces)]
    return pieces_by_options


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
    """The address of an array's first element."""
    return _pointer(id(array) + _HEAD).value if _PEEKS else array.ctypes.data


# numpy's C API keeps that address as the first field of an array object. ``array.ctypes.data`` creates three objects,
# which takes as long as measuring a small pair. Checked on a real array, in case an interpreter lays objects out
# differently.
_pointer, _HEAD = ctypes.c_size_t.from_address, object.__basicsize__
_PEEKS = (probe := np.zeros(1)).ctypes.data == _pointer(id(probe) + _HEAD).value


def scan_part(options: PassOptions, ref: Array, cand: Array, offset: int, whole: int) -> Cells:
    """Measure one chunk, converted into memory of its own, of a pair of ``whole`` elements."""
    cells = empty_cells([whole])
    row = (_address(ref), _address(cand), ref.size, offset, whole, 0)
    _scan_here(options, np.zeros(1, np.int64), np.array([row]), cells)
    return cells.reshape(-1)


def _scan_on_all_cores(options: PassOptions, table: NDArray[np.int64], cells: Cells) -> None:
    """Let every core take pieces until none is left; a thread that has not started by then is cancelled."""
    taken = np.zeros(1, np.int64)
    is_shared = len(table) > 1 and table[:, 2].sum() >= _WORTH_SHARING
    others = [pool().submit(_scan_here, options, taken, table, cells) for _ in range(cores() - 1 if is_shared else 0)]
    _scan_here(options, taken, table, cells)
    for job in others:
        if not job.cancel():
            job.result()


def _scan_here(options: PassOptions, taken: NDArray[np.int64], table: NDArray[np.int64], cells: Cells) -> None:
    bounds = _bounds(options.tolerance, options.enter[0] == np.float64)
    load_kernels().scan_taken(taken, table, *map(_like, options.enter), *bounds, options.splits_ties, cells)


@cache
def _like(dtype: DType) -> Array:
    """An empty array that tells the compiled pass the type of the memory at an address."""
    return np.empty(0, dtype)


@lru_cache(maxsize=256)
def _bounds(tolerance: Tolerance, wide: bool) -> tuple[Array, Array]:
    """The tolerance; and, in the tensors' precision, a bound just below it and the smallest sum of squares to trust.

    Where that precision cannot hold the tolerance no sum is trusted: every block is then summed in float64.
    """
    real, slack, vanishing = ("f8", 4e-15, 1e-290) if wide else ("f4", 1e-6, 1e-34)
    least = float(np.finfo(real).smallest_subnormal)  # with 0, equal elements would count as nearly outside
    under = max(tolerance.atol * (1 - slack), least), tolerance.rtol * (1 - slack)
    near = (0.0, 0.0, math.inf) if max(under) > _MOST_IN_FLOAT32 and not wide else (*under, vanishing)
    return np.array([tolerance.atol, tolerance.rtol], np.float64), np.array(near, real)
