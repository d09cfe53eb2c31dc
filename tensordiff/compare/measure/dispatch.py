"""Measure pairs: ``measure_many`` turns tensors into ``Diff`` records.

Two passes compute the same numbers: ``compiled_pass``, and ``numpy_pass`` for tests and for installs without a compiled
one. The install decides which of them measures, never what a process has measured before, since the two differ in the
last digits of a sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np

from tensordiff.compare.measure import compiled_pass, numpy_pass
from tensordiff.compare.measure.chunks import flat_chunks
from tensordiff.compare.measure.compiled_pass import How, Sides
from tensordiff.compare.measure.diff import Cells, Diff, Products, Sums, WideDiff, empty_cells
from tensordiff.compare.measure.dtype_plan import PassOptions, Tolerance, plan_for
from tensordiff.compare.measure.metrics import SecondSums, diffs_from_cells
from tensordiff.compare.measure.wide_range import measure_wide
from tensordiff.dump.dtypes import Array, has_zero
from tensordiff.dump.files import flat_part
from tensordiff.dump.model import Spec, StoredTensor

CLUSTER_STRETCH = 1 << 26
"""Elements of a huge pair that one worker of a cluster measures; a whole number of pieces."""
_MOST_AT_ONCE = 1 << 24
"""Elements of a stretch that all cores measure together."""


def measure(ref: Array, cand: Array, tolerance: Tolerance | None = None, *, compiled: bool | None = None) -> Diff:
    """Compare two tensors of one shape. ``compiled`` forces one of the passes; None uses what the install has."""
    return measure_many([(ref, cand, tolerance)], compiled=compiled)[0]


MeasureInput = tuple[Array, Array, Tolerance | None]
"""Reference, candidate, and the tolerance beyond which elements count as outside."""


def measure_many(pairs: Iterable[MeasureInput], *, compiled: bool | None = None) -> list[Diff]:
    """Compare several pairs, each of one shape and any types. One call is faster than one call per small pair."""
    is_compiled = compiled_pass.is_there() if compiled is None else compiled
    tasks = [_task_for(ref, cand, tolerance) for ref, cand, tolerance in pairs]
    sizes, shapes = [task.ref.size for task in tasks], [task.ref.shape for task in tasks]
    cells = _compiled_cells(tasks) if is_compiled else _numpy_cells(tasks)
    wide = [k for k, task in enumerate(tasks) if task.is_wide and task.ref.size]
    products = _compiled_products if is_compiled else _numpy_products
    second = SecondSums(lambda k: products(tasks[k]), wide, lambda k: _measure_wide(tasks[k]))
    diffs = diffs_from_cells(sizes, shapes, cells, second, compiled_pass.fill if is_compiled else None)
    for k, task in enumerate(tasks):
        if task.is_complex:
            diffs[k] = diffs[k]._replace(is_complex=True)
    return diffs


Stretches = Callable[[], Iterable[tuple[Array, Array]]]
"""Yields both sides of a pair one stretch at a time, in order; each call starts from the beginning."""


def measure_stretches(
    stretches: Stretches, like: tuple[Spec, Spec], tolerance: Tolerance | None = None, *, compiled: bool | None = None
) -> Diff:
    """Compare two tensors with specs ``like``, of which only a stretch of rows is in memory at a time.

    They are read once, and a second time if sums cancel or leave the range of float64.
    """
    is_compiled = compiled_pass.is_there() if compiled is None else compiled
    is_complex = any(spec.dtype.kind == "c" for spec in like)
    plan = plan_for(*(_real(np.empty(0, spec.dtype)).dtype if is_complex else spec.dtype for spec in like))
    shape = (*like[0].shape, 2) if is_complex else like[0].shape
    size = math.prod(shape)
    options = plan.options(size, tolerance)

    def chunks() -> Iterator[tuple[int, Array, Array]]:
        offset = 0
        for ref, cand in stretches():
            sides = as_reals(ref, cand)
            yield from ((offset + at, r, c) for at, r, c in flat_chunks(*sides, _MOST_AT_ONCE))
            offset += sides[0].size

    def sides_of(r: Array, c: Array) -> Sides:
        plain = [np.ascontiguousarray(side, side.dtype.newbyteorder("=")) for side in (r, c)]
        return Sides(compiled_pass.how_for(plain[0].dtype, plain[1].dtype, options), plain[0], plain[1])

    def products(_: int) -> Products:
        if is_compiled:
            return _summed([compiled_pass.products(sides_of(r, c)) for _, r, c in chunks()])
        return _summed([numpy_pass.products(r, c) for _, r, c in chunks()])

    if is_compiled:
        cells = compiled_pass.scan_chunks(((at, sides_of(r, c)) for at, r, c in chunks()), size)
    else:
        cells = empty_cells([size])
        sums = Sums(size, cells[0])
        for at, r, c in chunks():
            numpy_pass.collect(r, c, at, sums, options.tolerance.atol, options.tolerance.rtol)
    wide = [0] if plan.is_wide and size else []
    second = SecondSums(products, wide, lambda _: measure_wide(chunks, size, options.tolerance))
    (diff,) = diffs_from_cells([size], [shape], cells, second, compiled_pass.fill if is_compiled else None)
    return diff._replace(is_complex=is_complex)


class Stretch(NamedTuple):
    """A part of a huge pair: flat elements of both sides from ``offset`` on. All parts but the last are whole
    pieces."""

    ref: StoredTensor
    cand: StoredTensor
    offset: int
    whole: int
    """The number of elements of the pair."""
    tolerance: Tolerance | None


def stretches_of(ref: StoredTensor, cand: StoredTensor, tolerance: Tolerance | None) -> list[Stretch]:
    """Split a pair into stretches that measure to the same bits as the whole; empty if it cannot be split."""
    whole = ref.spec.size
    if ref.spec.shape != cand.spec.shape or not compiled_pass.is_there() or whole <= CLUSTER_STRETCH:
        return []
    if any(spec.dtype.kind == "c" for spec in (ref.spec, cand.spec)):
        return []
    stretches = []
    for begin in range(0, whole, CLUSTER_STRETCH):
        parts = [flat_part(side, begin, min(begin + CLUSTER_STRETCH, whole)) for side in (ref, cand)]
        if parts[0] is None or parts[1] is None:
            return []
        stretches.append(Stretch(parts[0], parts[1], begin, whole, tolerance))
    return stretches


def cells_of_stretch(stretch: Stretch) -> Cells:
    """A row of cells for each piece of a stretch, equal to those of a pass over the whole pair."""
    ref, cand = stretch.ref.read(), stretch.cand.read()
    options = plan_for(ref.dtype, cand.dtype).options(stretch.whole, stretch.tolerance)
    sides = Sides(compiled_pass.how_for(ref.dtype, cand.dtype, options), ref, cand)
    return compiled_pass.scan_pieces(sides, stretch.offset, stretch.whole)


def diff_of_stretches(pieces: Cells, sides: tuple[StoredTensor, StoredTensor], tolerance: Tolerance | None) -> Diff:
    """The diff of a pair from the cells of all its pieces, in order; if sums cancel, the pair is read again here."""
    spec = sides[0].spec
    plan = plan_for(spec.dtype, sides[1].spec.dtype)

    def task() -> _Task:
        ref, cand = (side.read() for side in sides)
        return _Task(ref, cand, plan.options(spec.size, tolerance), plan.is_wide, is_complex=False)

    second = SecondSums(
        lambda _: _compiled_products(task()), [0] if plan.is_wide else [], lambda _: _measure_wide(task())
    )
    cells = compiled_pass.join_pieces(pieces, spec.size)
    return diffs_from_cells([spec.size], [spec.shape], cells, second, compiled_pass.fill)[0]


class _Task(NamedTuple):
    """A pair in real numbers, and how to measure it."""

    ref: Array
    cand: Array
    options: PassOptions
    is_wide: bool
    """Whether a side is float64."""
    is_complex: bool
    """Whether the last axis holds real and imaginary parts."""


def _task_for(ref: Array, cand: Array, tolerance: Tolerance | None) -> _Task:
    if ref.shape != cand.shape:
        raise ValueError(f"shapes differ: {ref.shape} and {cand.shape}; reconcile them first")
    is_complex = ref.dtype.kind == "c" or cand.dtype.kind == "c"
    ref, cand = as_reals(ref, cand) if is_complex else (ref, cand)
    plan = plan_for(ref.dtype, cand.dtype)
    options = plan.options(ref.size, tolerance)
    return tuple.__new__(_Task, (ref, cand, options, plan.is_wide, is_complex))  # in half the time of ``_Task(…)``


def as_reals(ref: Array, cand: Array) -> tuple[Array, Array]:
    """Both sides in real numbers: complex numbers become pairs of reals along a new last axis."""
    if ref.dtype.kind == "c" or cand.dtype.kind == "c":
        return _real(ref), _real(cand)
    return ref, cand


def _real(array: Array) -> Array:
    """Complex numbers as pairs along a last axis; real numbers get an imaginary part of zero, in their own type.

    A type without a zero (float8_e8m0fnu has only powers of two) becomes float32.
    """
    if array.dtype.kind != "c":
        pairs = np.zeros((*array.shape, 2), array.dtype if has_zero(array.dtype) else np.float32)
        pairs[..., 0] = array
        return pairs
    return np.ascontiguousarray(array).reshape(array.shape)[..., None].view(np.dtype(f"f{array.dtype.itemsize // 2}"))


# --- the compiled pass ------------------------------------------------------------------------------


def _compiled_cells(tasks: Sequence[_Task]) -> Cells:
    in_place = [_is_plain(task.ref) and _is_plain(task.cand) for task in tasks]
    scanned = compiled_pass.scan(list(_sides_in_place(compress(tasks, in_place))))
    if all(in_place):
        return scanned
    cells = empty_cells([task.ref.size for task in tasks])
    cells[in_place] = scanned
    for row, task, is_so in zip(cells, tasks, in_place, strict=True):
        if not is_so:
            row[:] = compiled_pass.scan_chunks(_chunks_of(task), task.ref.size)[0]
    return cells


def _sides_in_place(tasks: Iterable[_Task]) -> Iterator[tuple[How, Array, Array]]:
    """``Sides`` of each pair. Nearly always a pair has the types of the one before, and is measured likewise."""
    how, before = None, None
    for ref, cand, options, _, _ in tasks:
        kind = ref.dtype, cand.dtype, options
        if how is None or kind != before:
            how, before = compiled_pass.how_for(*kind), kind
        yield how, ref, cand


def _is_plain(array: Array) -> bool:
    """Whether the compiled pass can read an array in place."""
    return array.flags.c_contiguous and array.dtype.isnative


def _chunks_of(task: _Task) -> Iterator[tuple[int, Sides]]:
    for offset, r, c in flat_chunks(task.ref, task.cand):
        yield offset, _sides(task, *(np.ascontiguousarray(side, side.dtype.newbyteorder("=")) for side in (r, c)))


def _sides(task: _Task, ref: Array, cand: Array) -> Sides:
    return Sides(compiled_pass.how_for(ref.dtype, cand.dtype, task.options), ref, cand)


def _compiled_products(task: _Task) -> Products:
    parts = [compiled_pass.products(sides) for _, sides in _chunks_of(task)]
    return _summed(parts)


# --- the numpy pass ---------------------------------------------------------------------------------


def _numpy_cells(tasks: Sequence[_Task]) -> Cells:
    cells = empty_cells([task.ref.size for task in tasks])
    for row, task in zip(cells, tasks, strict=True):
        sums, tolerance = Sums(task.ref.size, row), task.options.tolerance
        for offset, r, c in flat_chunks(task.ref, task.cand):
            numpy_pass.collect(r, c, offset, sums, tolerance.atol, tolerance.rtol)
    return cells


def _numpy_products(task: _Task) -> Products:
    parts = [numpy_pass.products(r, c) for _, r, c in flat_chunks(task.ref, task.cand)]
    return _summed(parts)


def _summed(parts: Sequence[Products]) -> Products:
    with np.errstate(all="ignore"):
        return Products(*np.sum(parts, axis=0).tolist())


def _measure_wide(task: _Task) -> WideDiff:
    return measure_wide(lambda: flat_chunks(task.ref, task.cand), task.ref.size, task.options.tolerance)
