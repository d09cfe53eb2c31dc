"""Measuring pairs: ``measure_many`` turns tensors into ``Diff`` records.

There are two passes over the values, which compute the same numbers: ``numpy_pass`` is ready at once, and the compiled
one in ``kernels`` is thirty times as fast but takes as long to load as numpy takes for some thirty million elements.
So the first, small pairs of a process are measured in numpy and the rest by the compiled pass. The two differ in the
last digits of a sum; see ``_PassSelector`` for what that means.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from tensordiff.compare.measure import numpy_pass
from tensordiff.compare.measure.chunks import flat_chunks
from tensordiff.compare.measure.diff import Cells, Diff, Products, Sums, WideDiff, empty_cells
from tensordiff.compare.measure.dtype_plan import DtypePlan, PassOptions, Tolerance, plan_for
from tensordiff.compare.measure.metrics import SecondSums, diffs_from_cells
from tensordiff.compare.measure.scheduler import has_kernels, in_order, load_kernels, scan_all, scan_part
from tensordiff.compare.measure.wide_range import measure_wide
from tensordiff.dump.dtypes import Array, DType, has_zero

LARGE = 1 << 24
"""Elements from which a pair always goes through the compiled pass."""
_NUMPY_BUDGET = 1 << 25  # elements measured in numpy before the compiled pass is loaded ...
_PAIR_OVERHEAD = 6_000  # ... to which every pair adds this many, for the time it takes beside its elements


def measure(ref: Array, cand: Array, tolerance: Tolerance | None = None, *, compiled: bool | None = None) -> Diff:
    """Compare two tensors of one shape. ``compiled`` forces one of the passes; None lets ``_PassSelector`` choose."""
    return measure_many([(ref, cand, tolerance)], compiled=compiled)[0]


MeasureInput = tuple[Array, Array, Tolerance | None]
"""Reference, candidate, and the tolerance that counts elements as outside."""


def measure_many(pairs: Iterable[MeasureInput], *, compiled: bool | None = None) -> list[Diff]:
    """Compare several pairs, each of one shape and any types. Small pairs are faster in one call than one by one."""
    tasks = [_task_for(ref, cand, tolerance, compiled) for ref, cand, tolerance in pairs]
    sizes, shapes = [task.ref.size for task in tasks], [task.ref.shape for task in tasks]
    in_place = [(task.options, task.ref, task.cand) for task in tasks if task.in_place]
    cells = scan_all(in_place) if in_place else empty_cells(())
    if len(in_place) < len(tasks):
        scanned, cells = iter(cells), empty_cells(sizes)
        for k, task in enumerate(tasks):
            cells[k] = next(scanned) if task.in_place else _cells_of(task)
    fill_all = load_kernels().fill_all if in_place else None
    wide = [k for k, task in enumerate(tasks) if task.plan.is_wide and task.ref.size]
    second = SecondSums(lambda k: _products(tasks[k]), wide, lambda k: _measure_wide(tasks[k]))
    diffs = diffs_from_cells(sizes, shapes, cells, second, fill_all)
    for k, task in enumerate(tasks):
        if task.is_complex:
            diffs[k] = diffs[k]._replace(is_complex=True)
    return diffs


class _Task(NamedTuple):
    """A pair in real numbers, and how to measure it."""

    ref: Array
    cand: Array
    plan: DtypePlan
    options: PassOptions
    is_compiled: bool
    in_place: bool
    """Whether the compiled pass can read both sides where they lie in memory."""
    is_complex: bool
    """Whether the last axis is real and imaginary part."""


def _task_for(ref: Array, cand: Array, tolerance: Tolerance | None, compiled: bool | None) -> _Task:
    if ref.shape != cand.shape:
        raise ValueError(f"shapes differ: {ref.shape} and {cand.shape}; reconcile them first")
    is_complex = ref.dtype.kind == "c" or cand.dtype.kind == "c"
    ref, cand = as_reals(ref, cand) if is_complex else (ref, cand)
    plan, size = plan_for(ref.dtype, cand.dtype), ref.size
    wants_compiled = _selector.use_compiled(plan, size) if compiled is None else compiled
    is_compiled = plan.may_compile and wants_compiled and has_kernels()
    in_place = is_compiled and plan.in_place and _is_plain_memory(ref) and _is_plain_memory(cand)
    return _Task(
        ref=ref, cand=cand, plan=plan, options=plan.options(size, tolerance),
        is_compiled=is_compiled, in_place=in_place, is_complex=is_complex,
    )  # fmt: skip


class _PassSelector:
    """Chooses the pass for a pair, by what this process has measured so far.

    Process-wide state on purpose: the choice never depends on the clock, so that running the same command twice gives
    the same numbers. But it does depend on earlier measurements in the same process: a pair measured late in a long
    session may differ in its last digits from the same pair measured first.
    """

    def __init__(self) -> None:
        self.measured_in_numpy = 0
        self.loaded: set[tuple[DType, DType]] = set()

    def use_compiled(self, plan: DtypePlan, size: int) -> bool:
        """Whether a pair of ``size`` elements is measured by the compiled pass; counts it if it is not."""
        if plan.enter in self.loaded:
            return True
        self.measured_in_numpy += size + _PAIR_OVERHEAD
        if size < LARGE and self.measured_in_numpy < _NUMPY_BUDGET:
            return False
        self.loaded.add(plan.enter)
        return True


_selector = _PassSelector()


def as_reals(ref: Array, cand: Array) -> tuple[Array, Array]:
    """Both sides in real numbers: complex ones become pairs of reals along a last axis."""
    if ref.dtype.kind == "c" or cand.dtype.kind == "c":
        return _real(ref), _real(cand)
    return ref, cand


def _real(array: Array) -> Array:
    """Complex numbers as pairs along a last axis; real ones get an imaginary part of zero, in their own type.

    A type that has no zero, which is only powers of two (float8_e8m0fnu), becomes float32.
    """
    if array.dtype.kind != "c":
        pairs = np.zeros((*array.shape, 2), array.dtype if has_zero(array.dtype) else np.float32)
        pairs[..., 0] = array
        return pairs
    return np.ascontiguousarray(array).reshape(array.shape)[..., None].view(np.dtype(f"f{array.dtype.itemsize // 2}"))


def _is_plain_memory(array: Array) -> bool:
    flags = array.flags
    return bool(flags.c_contiguous and flags.aligned)


def _cells_of(task: _Task) -> Cells:
    """Measure a pair chunk by chunk: in numpy, or converted for the compiled pass."""
    sums = Sums.empty(task.ref.size)
    if task.is_compiled:
        for part in in_order(lambda chunk: _scan_chunk(task, *chunk), flat_chunks(task.ref, task.cand)):
            sums.add(part)
    else:
        for offset, r, c in flat_chunks(task.ref, task.cand):
            numpy_pass.collect(r, c, offset, sums, task.options.tolerance.atol, task.options.tolerance.rtol)
    return sums.cells


def _scan_chunk(task: _Task, offset: int, ref: Array, cand: Array) -> Sums:
    whole = task.ref.size
    return Sums(whole, scan_part(task.options, *task.plan.convert(ref, cand), offset, whole))


def _products(task: _Task) -> Products:
    total = np.zeros(5)
    for _, r, c in flat_chunks(task.ref, task.cand):
        if task.is_compiled:
            load_kernels().exact_products(*task.plan.convert(r, c), total)
        else:
            total += numpy_pass.products(r, c)
    return Products(*total.tolist())


def _measure_wide(task: _Task) -> WideDiff:
    return measure_wide(lambda: flat_chunks(task.ref, task.cand), task.ref.size, task.options.tolerance)
