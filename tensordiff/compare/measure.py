"""Measuring a pair: the right pass for its types, in parts that keep memory bounded, on all cores.

``measure`` is the one way to a ``Diff``. It decides between the compiled pass and the numpy one:
the compiler takes seconds the first time a pair of types is met, so it works in the background
while numpy answers, and dumps too small to matter never ask for it.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from tensordiff.compare import plain
from tensordiff.compare.ahead import cores, pool
from tensordiff.compare.finish import finish
from tensordiff.compare.plan import Plan, Tolerance, plan_for
from tensordiff.compare.sums import Cells, Diff, Products, Sums, all_edges, empty_cells
from tensordiff.dump.dtypes import Array, DType

PART = 1 << 20
"""Elements converted at a time where a tensor cannot be read in place."""
SHARED = 1 << 24
"""Elements from which all cores share one pair; smaller ones are measured side by side, see ``ahead``."""
_TIES_SPLIT_BELOW = 1 << 17  # elements up to which ties of 16-bit values are told apart
_COMPILE_AFTER = 1 << 22  # elements answered by numpy before the compiled pass is loaded
_WAIT_ABOVE = 1 << 25  # elements in one tensor for which numpy would take longer than the compiler


def measure(ref: Array, cand: Array, tolerance: Tolerance | None = None, *, compiled: bool | None = None) -> Diff:
    """All numbers for two tensors of one shape. ``compiled`` forces a pass; None decides by itself."""
    return measure_many([(ref, cand, tolerance)], compiled=compiled)[0]


Sides = tuple[Array, Array, Tolerance | None]


def measure_many(sides: Iterable[Sides], *, compiled: bool | None = None) -> list[Diff]:
    """All numbers for several pairs, each of one shape and any types: small ones are quicker together."""
    return _measure_prepared([_prepared(ref, cand, tolerance, compiled) for ref, cand, tolerance in sides])


def _measure_prepared(pairs: Sequence[_Prepared]) -> list[Diff]:
    sizes, shapes = [pair.ref.size for pair in pairs], [pair.ref.shape for pair in pairs]
    cells = empty_cells(sizes)
    together: dict[tuple[Plan, Tolerance, bool], list[int]] = defaultdict(list)
    for k, pair in enumerate(pairs):
        if pair.lies_whole and pair.ref.size < SHARED:
            together[pair.plan, pair.how, _splits_ties(pair.ref.size, pair.ref, pair.cand)].append(k)
        else:
            _collect(pair, Sums(pair.ref.size, cells[k]))
    for (plan, how, splits_ties), places in together.items():
        _scan_together(plan, how, splits_ties, [pairs[k] for k in places], places, cells)
    fill_all = _kernels().fill_all if together else None
    return finish(sizes, shapes, cells, lambda k, factor: _products(pairs[k], factor), fill_all)


class _Prepared(NamedTuple):
    """A pair in real numbers, and how it is measured."""

    ref: Array
    cand: Array
    plan: Plan
    how: Tolerance
    kernels: ModuleType | None
    lies_whole: bool
    """Whether the compiled pass can read both where they lie."""


def _prepared(ref: Array, cand: Array, tolerance: Tolerance | None, compiled: bool | None) -> _Prepared:
    if ref.shape != cand.shape:
        raise ValueError(f"shapes differ: {ref.shape} and {cand.shape}; reconcile them first")
    ref, cand = as_reals(ref, cand)
    plan = plan_for(ref.dtype, cand.dtype)
    wanted = _is_ready(plan, ref.size) if compiled is None else compiled
    kernels = _kernels() if wanted and plan.may_compile else None
    lies_whole = kernels is not None and plan.in_place and _is_plain_memory(ref) and _is_plain_memory(cand)
    return _Prepared(ref, cand, plan, tolerance or plan.usual, kernels, lies_whole)


def as_reals(ref: Array, cand: Array) -> tuple[Array, Array]:
    """The pair in real numbers, which it mostly is."""
    if ref.dtype.kind == "c" or cand.dtype.kind == "c":
        return _real(ref), _real(cand)
    return ref, cand


def _real(array: Array) -> Array:
    """Complex numbers as pairs of reals along a last axis; reals with an imaginary part of nothing."""
    if array.dtype.kind != "c":
        array = array.astype(np.complex128)
    return np.ascontiguousarray(array)[..., None].view(np.dtype(f"f{array.dtype.itemsize // 2}"))


# --- whether the compiled pass is ready ------------------------------------------------------------


class _Readiness:
    """Which types the compiled pass is ready for, and how much numpy has answered meanwhile."""

    def __init__(self) -> None:
        self.answered = 0
        self.ready: set[tuple[DType, DType]] = set()
        self.asked: set[tuple[DType, DType]] = set()

    def prepare(self, plan: Plan) -> None:
        """Compile for these types in the background, once."""
        if plan.enter not in self.asked:
            self.asked.add(plan.enter)
            threading.Thread(target=self.compile, args=(plan,), daemon=True).start()

    def compile(self, plan: Plan) -> None:
        """Compile for these types, or load what was compiled before."""
        ref, cand = (np.zeros(4, dtype) for dtype in plan.enter)
        _measure_prepared([_Prepared(ref, cand, plan, Tolerance(), _kernels(), True)])
        self.ready.add(plan.enter)


_readiness = _Readiness()


def _is_ready(plan: Plan, elements: int) -> bool:
    if plan.enter in _readiness.ready:
        return True
    _readiness.answered += elements
    if elements > _WAIT_ABOVE and plan.may_compile:
        _readiness.compile(plan)
        return True
    if _readiness.answered > _COMPILE_AFTER and plan.may_compile:
        _readiness.prepare(plan)
    return False


def warm_up(ref: DType, cand: DType) -> None:
    """Make the compiled pass ready for a pair of types, now."""
    _readiness.compile(plan_for(ref, cand))


@cache
def _kernels() -> ModuleType:
    from tensordiff.compare import kernels

    return kernels


# --- parts ---------------------------------------------------------------------------------------


def _collect(pair: _Prepared, sums: Sums) -> None:
    """Take a pair that is large, or that must be converted, into its sums."""
    ref, cand, plan, how, kernels, lies_whole = pair
    if kernels is not None and lies_whole:
        _scan_on_all_cores(kernels, _flat(ref, plan.enter[0]), _flat(cand, plan.enter[1]), sums, how)
        return
    for offset, r, c in flat_parts(ref, cand):
        if kernels is None:
            plain.collect(r, c, offset, sums, *how)
        else:
            _scan_part(kernels, *plan.convert(r, c), offset, sums, how)


def _flat(array: Array, enter: DType) -> Array:
    return array.reshape(-1).view(enter)


def _scan_together(
    plan: Plan, how: Tolerance, splits_ties: bool, pairs: Sequence[_Prepared], places: list[int], cells: Cells
) -> None:
    """Read pairs that lie whole in memory in one call; their rows of cells are at these places."""
    sizes, sides = [pair.ref.size for pair in pairs], [(pair.ref, pair.cand) for pair in pairs]
    are_all = len(places) == len(cells)
    mine = cells if are_all else cells[places]
    _scan(_kernels(), plan.enter, sides, [0] * len(sizes), sizes, how, splits_ties, mine)
    if not are_all:
        cells[places] = mine


def _scan(
    kernels: ModuleType, enter: tuple[DType, DType], sides: Sequence[tuple[Array, Array]], offsets: Sequence[int],
    wholes: Sequence[int], how: Tolerance, splits_ties: bool, cells: Cells,
) -> None:  # fmt: skip
    """Take parts that start at these offsets, of pairs of these sizes, into a row of cells each."""
    addresses = np.array([(_address(ref), _address(cand)) for ref, cand in sides], dtype=np.int64)
    elements, starts = np.array([ref.size for ref, _ in sides]), np.array([all_edges(n) for n in wholes])
    bounds, vanishing = _bounds(how, enter[0] == np.float64)
    likes = _like(enter[0]), _like(enter[1])
    kernels.scan_many(
        addresses, elements, np.array(offsets), starts, *likes, how, bounds, vanishing, splits_ties, cells
    )


@cache
def _like(dtype: DType) -> Array:
    """What tells the compiled pass of which type the memory at an address is."""
    return np.empty(0, dtype)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _splits_ties(elements: int, ref: Array, cand: Array) -> bool:
    """16-bit values tie in nearly every block: telling ties apart in large tensors would double the time."""
    return elements < _TIES_SPLIT_BELOW or max(ref.itemsize, cand.itemsize) > 2


def _is_plain_memory(array: Array) -> bool:
    flags = array.flags
    return bool(flags.c_contiguous and flags.aligned)


def flat_parts(ref: Array, cand: Array) -> Iterator[tuple[int, Array, Array]]:
    """Flat parts of bounded size, without copying what is contiguous already."""
    if ref.flags.c_contiguous and cand.flags.c_contiguous:
        r, c = ref.reshape(-1), cand.reshape(-1)
        for begin in range(0, ref.size, PART):
            yield begin, r[begin : begin + PART], c[begin : begin + PART]
    elif ref.size <= PART:
        yield 0, ref.reshape(-1), cand.reshape(-1)
    else:
        yield from _row_parts(ref, cand)


def _row_parts(ref: Array, cand: Array) -> Iterator[tuple[int, Array, Array]]:
    """Walk the first axis in slices no larger than a part."""
    row = ref.size // len(ref)
    step = max(1, PART // row)
    for begin in range(0, len(ref), step):
        take = begin if step == 1 else slice(begin, begin + step)
        for offset, r, c in flat_parts(ref[take], cand[take]):
            yield begin * row + offset, r, c


def _scan_on_all_cores(kernels: ModuleType, ref: Array, cand: Array, sums: Sums, how: Tolerance) -> None:
    """Read both tensors where they lie, each core its share."""
    cuts = [ref.size * k // cores() for k in range(cores() + 1)]
    shares = [(a, b, Sums.empty(ref.size)) for a, b in pairwise(cuts[1:])]
    jobs = [pool().submit(_scan_part, kernels, ref[a:b], cand[a:b], a, part, how) for a, b, part in shares]
    _scan_part(kernels, ref[: cuts[1]], cand[: cuts[1]], 0, sums, how)
    for job, (_, _, part) in zip(jobs, shares, strict=True):
        job.result()
        sums.add(part)


def _scan_part(kernels: ModuleType, ref: Array, cand: Array, offset: int, sums: Sums, how: Tolerance) -> None:
    splits_ties = _splits_ties(sums.elements, ref, cand)
    sides, cells = [(ref, cand)], sums.cells.reshape(1, -1)
    _scan(kernels, (ref.dtype, cand.dtype), sides, [offset], [sums.elements], how, splits_ties, cells)


@lru_cache(maxsize=256)
def _bounds(how: Tolerance, wide: bool) -> tuple[tuple[np.floating[Any], ...], np.floating[Any]]:
    """The tolerance a hair under and over (between them rounding could decide), and when squares vanish."""
    real, band, vanishing = (np.float64, 4e-15, 1e-290) if wide else (np.float32, 1e-6, 1e-34)
    return tuple(real(limit * factor) for factor in (1 - band, 1 + band) for limit in how), real(vanishing)


def _products(pair: _Prepared, factor: float) -> Products:
    total = np.zeros(5)
    for _, r, c in flat_parts(pair.ref, pair.cand):
        if pair.kernels is None or factor != 1:
            total += plain.products(r, c, factor)
        else:
            pair.kernels.exact_products(*pair.plan.convert(r, c), total)
    return Products(*total.tolist())
