"""The compiled pass: the library that was built from ``kernel/`` at install time, called through ctypes.

It reads tensors of every type in place, large ones on all cores and without the GIL. A large pair is cut into pieces of
fixed size, and each core takes the next piece until none is left. Pieces are joined in order, so the numbers depend
neither on which core took which piece nor on the number of cores.

An install for which nothing could compile has no library: ``kernel.why_missing`` gives the reason, and ``numpy_pass``
measures instead.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.measure import kernel, scheduler
from tensordiff.compare.measure.diff import Cells, Products, empty_cells
from tensordiff.compare.measure.dtype_plan import PassOptions
from tensordiff.compare.measure.metrics import Numbers
from tensordiff.dump.dtypes import Array, DType, name_of

LEVEL = 9
"""The processor level to use, or the best available if that is lower; only tests change it, to 1 or 3."""
_WORTH_SHARING = 1 << 19  # elements that one core measures in the time that another one needs to wake up
_WORTH_RELEASING = 1 << 18  # elements that take longer (some 50 µs) than other threads should wait for the GIL
_MOST_IN_FLOAT32 = 1e30  # largest tolerance: its product with a value may overflow float32 and then allow any error

# The order is that of ``enum kind`` in kernel/elements.h. "table" is any one-byte type without a code of its own.
KINDS = (
    "float32", "float64", "bfloat16", "float16", "int8", "uint8", "bool", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "table", "int16", "uint16", "int32", "uint32", "int64",
    "uint64",
)  # fmt: skip
_HOW = np.dtype([
    ("kinds", "i4", 2), ("bytes", "i4", 2), ("tables", "i8", 2), ("tolerance", "f8", 2), ("under", "f8", 2),
    ("vanishing", "f8"), ("splits_ties", "i8"),
])  # fmt: skip


# --- the library ----------------------------------------------------------------------------------


def is_there() -> bool:
    """Whether this install has the compiled pass."""
    return kernel.why_missing() is None


@cache
def _library(*, holds_gil: bool = True) -> ctypes.CDLL:
    """The library. Calls of microseconds hold the GIL, since getting it back from a busy thread may take
    milliseconds."""
    checked = kernel.library()  # raises if there is none for these sources
    library = ctypes.PyDLL(checked._name) if holds_gil else checked
    pointer, count, level = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    for name, arguments in {
        "td_scan": (level, pointer, pointer, count, pointer),
        "td_products": (level, pointer, pointer, pointer, count, pointer),
        "td_join": (pointer, pointer, count, pointer),
        "td_fill": (pointer, pointer, count, pointer, pointer),
        "td_read": (pointer, count),
    }.items():
        getattr(library, name).argtypes, getattr(library, name).restype = arguments, None
    return library


# --- how a pair is measured -----------------------------------------------------------------------


class How(NamedTuple):
    """The address of a ``struct how`` of the library, and the memory that holds it and its tables."""

    address: int
    memory: tuple[Array, ...]


@lru_cache(maxsize=1024)
def how_for(ref: DType, cand: DType, options: PassOptions) -> How:
    """How to measure a pair of these types."""
    kinds, tables = [_kind(side) for side in (ref, cand)], [_table(side) for side in (ref, cand)]
    how = np.zeros(1, _HOW)
    how["kinds"], how["bytes"] = kinds, (ref.itemsize, cand.itemsize)
    how["tables"] = [table.ctypes.data for table in tables]
    how["tolerance"] = options.tolerance.atol, options.tolerance.rtol
    is_wide = not (_fits_float32(ref) and _fits_float32(cand))
    are_whole = all(side.kind in "iub" for side in (ref, cand))
    under, how["vanishing"] = _bounds(options.tolerance.atol, options.tolerance.rtol, is_wide, are_whole)
    how["under"], how["splits_ties"] = under, options.splits_ties
    return How(how.ctypes.data, (how, *tables))


def _bounds(atol: float, rtol: float, is_wide: bool, are_whole: bool) -> tuple[tuple[float, float], float]:
    """atol and rtol slightly below the user's, and the smallest sum of squares to trust.

    If float32 lanes cannot hold the tolerance, no sum is trusted, and every block is summed in float64.
    """
    real, slack, vanishing = ("f8", 4e-15, 1e-290) if is_wide else ("f4", 1e-6, 1e-34)
    if are_whole and atol < 0.5 and rtol == 0:
        return (0.5, 0.0), vanishing  # an error is at least 1, and denormal numbers are slow
    least = float(np.finfo(real).smallest_subnormal)  # with 0, equal elements would count as nearly outside
    under = max(atol * (1 - slack), least), rtol * (1 - slack)
    return ((0.0, 0.0), np.inf) if max(under) > _MOST_IN_FLOAT32 and not is_wide else (under, vanishing)


def _kind(dtype: DType) -> int:
    name = name_of(dtype)
    return KINDS.index(name if name in KINDS else "table")


@cache
def _table(dtype: DType) -> Array:
    """The values of all codes of a one-byte type."""
    if dtype.itemsize != 1:
        return np.zeros(1, np.float32)
    codes = np.arange(256, dtype=np.uint8)
    values = codes != 0 if dtype == np.bool_ else codes.view(dtype)
    return np.ascontiguousarray(values.astype(np.float32))


def _fits_float32(dtype: DType) -> bool:
    return dtype.itemsize <= 2 or (dtype.itemsize == 4 and dtype.kind not in "iu")


# --- passes over pairs ----------------------------------------------------------------------------


class Sides(NamedTuple):
    """Both sides of a pair or of a chunk, contiguous and in native byte order."""

    how: How
    ref: Array
    cand: Array


def scan(pairs: Sequence[tuple[How, Array, Array]]) -> Cells:
    """A row of cells for each pair (``Sides``)."""
    table: list[tuple[int, ...]] = []
    sizes: list[int] = []
    firsts, piece = [0], scheduler.PIECE
    for how, ref, cand in pairs:
        size, ours, theirs = ref.size, address(ref), address(cand)
        if size <= piece:  # as are nearly all
            table.append((how.address, ours, theirs, size, 0, size, len(sizes)))
            sizes.append(size)
            firsts.append(len(sizes))
            continue
        for begin in range(0, size, piece):
            ref_at, cand_at = ours + begin * ref.itemsize, theirs + begin * cand.itemsize
            table.append((how.address, ref_at, cand_at, min(piece, size - begin), begin, size, len(sizes)))
            sizes.append(size)
        firsts.append(len(sizes))
    cells = empty_cells(sizes)
    _scan_table(table, cells)
    return cells if len(sizes) == len(pairs) else _join(cells, firsts, [ref.size for _, ref, _ in pairs])


def scan_chunks(chunks: Iterable[tuple[int, Sides]], whole: int) -> Cells:
    """One row of cells for a pair of which only a chunk is in memory at a time; each chunk comes with its offset."""
    rows = [scan_pieces(sides, offset, whole) for offset, sides in chunks]
    return join_pieces(np.concatenate(rows), whole) if rows else empty_cells([whole])


def scan_pieces(sides: Sides, offset: int, whole: int) -> Cells:
    """A row of cells for each piece of a chunk that begins at ``offset`` of the whole pair."""
    (how, ref, cand), piece = sides, scheduler.PIECE
    ours, theirs, begins = address(ref), address(cand), range(0, max(ref.size, 1), piece)
    table = [
        (how.address, ours + at * ref.itemsize, theirs + at * cand.itemsize, min(piece, ref.size - at), offset + at)
        for at in begins
    ]
    cells = empty_cells([whole] * len(table))
    _scan_table([(*row, whole, k) for k, row in enumerate(table)], cells)
    return cells


def join_pieces(pieces: Cells, whole: int) -> Cells:
    """The row of cells of a pair, from those of its pieces in order."""
    return _join(pieces, [0, len(pieces)], [whole])


def _scan_table(rows: Sequence[tuple[int, ...]], cells: Cells) -> None:
    """Let every core take pieces until none is left; a thread that has not started by then is cancelled."""
    taken, table = np.zeros(1, np.int64), np.array(rows, np.int64)
    elements = sum([row[3] for row in rows])
    library = _library(holds_gil=elements < _WORTH_RELEASING)
    work = library.td_scan, (LEVEL, address(taken), address(table), len(table), address(cells))
    is_shared = len(table) > 1 and elements >= _WORTH_SHARING
    others = [scheduler.pool().submit(work[0], *work[1]) for _ in range(scheduler.cores() - 1 if is_shared else 0)]
    try:
        work[0](*work[1])
    finally:
        for job in others:
            if not job.cancel():
                job.result()


def _join(pieces: Cells, firsts: Sequence[int], sizes: Sequence[int]) -> Cells:
    joined, starts = empty_cells(sizes), np.array(firsts)
    _library().td_join(address(pieces), address(starts), len(sizes), address(joined))
    return joined


def products(sides: Sides) -> Products:
    """Inner products over the finite places, in float64."""
    how, ref, cand = sides
    out = np.zeros(5)
    _library(holds_gil=ref.size < _WORTH_RELEASING).td_products(
        LEVEL, how.address, address(ref), address(cand), ref.size, address(out)
    )
    return Products(*out.tolist())


def fill(cells: Cells, elements: NDArray[np.int64], reals: Numbers, counts: Numbers) -> None:
    """Apply ``metrics.fill`` to every row."""
    _library().td_fill(address(cells), address(elements), len(elements), address(reals), address(counts))


def read_once(array: Array) -> None:
    """Read every word of an array and do nothing with it: the lower bound in benchmarks."""
    _library(holds_gil=False).td_read(address(array), array.nbytes // 8)


def address(array: Array) -> int:
    """The address of an array's first element."""
    return _pointer(id(array) + _HEAD).value if _PEEKS else array.ctypes.data


# numpy's C API keeps that address as the first field of an array object. ``array.ctypes.data`` creates three objects,
# which takes as long as measuring a small pair. A real array is checked first, in case an interpreter lays objects out
# differently.
_pointer, _HEAD = ctypes.c_size_t.from_address, object.__basicsize__
_PEEKS = (probe := np.zeros(1)).ctypes.data == _pointer(id(probe) + _HEAD).value
