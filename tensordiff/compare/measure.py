"""Measuring a pair: the right pass for its types, in parts that keep memory bounded, on all cores.

``measure`` is the one way to a ``Diff``. It decides between the compiled pass and the numpy one:
the compiler takes seconds the first time a pair of types is met, so it works in the background
while numpy answers, and dumps too small to matter never ask for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np

from tensordiff.compare import plain
from tensordiff.compare.ahead import cores, pool
from tensordiff.compare.plan import Plan, Tolerance, plan_for
from tensordiff.compare.sums import Diff, Products, Sums, edges, finish
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
    if ref.shape != cand.shape:
        raise ValueError(f"shapes differ: {ref.shape} and {cand.shape}; reconcile them first")
    ref, cand = as_reals(ref, cand)
    plan = plan_for(ref.dtype, cand.dtype)
    wanted = _is_ready(plan, ref.size) if compiled is None else compiled
    kernels = _kernels() if wanted and plan.may_compile else None
    sums = _collect(kernels, plan, ref, cand, tolerance or plan.usual)
    return finish(sums, ref.shape, lambda factor: _products(kernels, plan, ref, cand, factor))


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
        _scan_part(_kernels(), ref, cand, 0, Sums.empty(4), Tolerance())
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


def _collect(kernels: ModuleType | None, plan: Plan, ref: Array, cand: Array, how: Tolerance) -> Sums:
    if kernels is not None and plan.in_place and _is_plain_memory(ref) and _is_plain_memory(cand):
        return _scan_in_place(kernels, ref.reshape(-1).view(plan.enter[0]), cand.reshape(-1).view(plan.enter[1]), how)
    sums = Sums.empty(ref.size)
    for offset, r, c in flat_parts(ref, cand):
        if kernels is None:
            plain.collect(r, c, offset, sums, *how)
        else:
            _scan_part(kernels, *plan.convert(r, c), offset, sums, how)
    return sums


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


def _scan_in_place(kernels: ModuleType, ref: Array, cand: Array, how: Tolerance) -> Sums:
    """Read both tensors where they lie; the larger ones on all cores."""
    sums = Sums.empty(ref.size)
    if ref.size < SHARED:
        _scan_part(kernels, ref, cand, 0, sums, how)
        return sums
    cuts = [ref.size * k // cores() for k in range(cores() + 1)]
    shares = [(a, b, Sums.empty(ref.size)) for a, b in pairwise(cuts[1:])]
    jobs = [pool().submit(_scan_part, kernels, ref[a:b], cand[a:b], a, part, how) for a, b, part in shares]
    _scan_part(kernels, ref[: cuts[1]], cand[: cuts[1]], 0, sums, how)
    for job, (_, _, part) in zip(jobs, shares, strict=True):
        job.result()
        sums.add(part)
    return sums


def _scan_part(kernels: ModuleType, ref: Array, cand: Array, offset: int, sums: Sums, how: Tolerance) -> None:
    bounds, vanishing = _bounds(how, ref.dtype == np.float64)
    # 16-bit values tie in nearly every block: telling ties apart there would double the time.
    splits_ties = sums.elements < _TIES_SPLIT_BELOW or max(ref.itemsize, cand.itemsize) > 2
    kernels.scan(ref, cand, offset, edges(sums.elements), how, bounds, vanishing, splits_ties, sums.cells)


@lru_cache(maxsize=256)
def _bounds(how: Tolerance, wide: bool) -> tuple[tuple[np.floating[Any], ...], np.floating[Any]]:
    """The tolerance a hair under and over (between them rounding could decide), and when squares vanish."""
    real, band, vanishing = (np.float64, 4e-15, 1e-290) if wide else (np.float32, 1e-6, 1e-34)
    return tuple(real(limit * factor) for factor in (1 - band, 1 + band) for limit in how), real(vanishing)


def _products(kernels: ModuleType | None, plan: Plan, ref: Array, cand: Array, factor: float) -> Products:
    total = np.zeros(5)
    for _, r, c in flat_parts(ref, cand):
        if kernels is None or factor != 1:
            total += plain.products(r, c, factor)
        else:
            kernels.exact_products(*plan.convert(r, c), total)
    return Products(*total.tolist())
