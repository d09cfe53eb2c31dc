"""Measuring a pair: the right pass for its types, in parts that keep memory bounded, on all cores.

``measure_many`` is the one way to a ``Diff``. There are two passes: numpy's is at hand at once, the compiled one is
thirty times as fast and must be loaded first, which takes as long as numpy needs for some thirty million elements.
Which one measures a pair depends on what was measured before it, never on the clock: the last digits of a sum differ
between the two, and the same comparison must give the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from tensordiff.compare.measure import numpy_pass as plain
from tensordiff.compare.measure.chunks import flat_parts
from tensordiff.compare.measure.diff import Cells, Diff, Products, Sums, empty_cells
from tensordiff.compare.measure.dtype_plan import How, Plan, Tolerance, plan_for
from tensordiff.compare.measure.metrics import finish
from tensordiff.compare.measure.scheduler import in_order, load_kernels, scan_all, scan_part
from tensordiff.dump.dtypes import Array, DType

_LARGE = 1 << 24  # elements of a pair that is not left to numpy
_LONG = 1 << 25  # elements that numpy answers before the compiled pass is worth loading ...
_A_PAIR = 6_000  # ... and what a pair takes beside its elements, in elements


def measure(ref: Array, cand: Array, tolerance: Tolerance | None = None, *, compiled: bool | None = None) -> Diff:
    """All numbers for two tensors of one shape. ``compiled`` asks for a pass; None decides by what was measured."""
    return measure_many([(ref, cand, tolerance)], compiled=compiled)[0]


Sides = tuple[Array, Array, Tolerance | None]


def measure_many(sides: Iterable[Sides], *, compiled: bool | None = None) -> list[Diff]:
    """All numbers for several pairs, each of one shape and any types: small ones are quicker together."""
    pairs = [_prepared(ref, cand, tolerance, compiled) for ref, cand, tolerance in sides]
    sizes, shapes = [pair.ref.size for pair in pairs], [pair.ref.shape for pair in pairs]
    whole = [(pair.how, pair.ref, pair.cand) for pair in pairs if pair.lies_whole]
    cells = scan_all(whole) if whole else empty_cells(())
    if len(whole) < len(pairs):
        lying, cells = iter(cells), empty_cells(sizes)
        for k, pair in enumerate(pairs):
            cells[k] = next(lying) if pair.lies_whole else _collected(pair)
    fill_all = load_kernels().fill_all if whole else None
    diffs = finish(sizes, shapes, cells, lambda k, factor: _products(pairs[k], factor), fill_all)
    for k, pair in enumerate(pairs):
        if pair.is_complex:
            diffs[k] = diffs[k]._replace(is_complex=True)
    return diffs


class _Prepared(NamedTuple):
    """A pair in real numbers, and how it is measured."""

    ref: Array
    cand: Array
    plan: Plan
    how: How
    is_compiled: bool
    lies_whole: bool
    """Whether the compiled pass can read both where they lie."""
    is_complex: bool
    """Whether the reals are pairs of real and imaginary part."""


def _prepared(ref: Array, cand: Array, tolerance: Tolerance | None, compiled: bool | None) -> _Prepared:
    if ref.shape != cand.shape:
        raise ValueError(f"shapes differ: {ref.shape} and {cand.shape}; reconcile them first")
    is_complex = ref.dtype.kind == "c" or cand.dtype.kind == "c"
    ref, cand = as_reals(ref, cand) if is_complex else (ref, cand)
    plan, size = plan_for(ref.dtype, cand.dtype), ref.size
    is_compiled = plan.may_compile and (_history.is_worth(plan, size) if compiled is None else compiled)
    lies_whole = is_compiled and plan.in_place and _is_plain_memory(ref) and _is_plain_memory(cand)
    return _Prepared(ref, cand, plan, plan.how(size, tolerance), is_compiled, lies_whole, is_complex)


class _History:
    """What numpy has answered in this process, and the types that the compiled pass was loaded for."""

    def __init__(self) -> None:
        self.answered = 0
        self.loaded: set[tuple[DType, DType]] = set()

    def is_worth(self, plan: Plan, size: int) -> bool:
        """Whether a pair of so many elements is for the compiled pass."""
        if plan.enter in self.loaded:
            return True
        self.answered += size + _A_PAIR
        if size < _LARGE and self.answered < _LONG:
            return False
        self.loaded.add(plan.enter)
        return True


_history = _History()


def as_reals(ref: Array, cand: Array) -> tuple[Array, Array]:
    """The pair in real numbers, which it mostly is."""
    if ref.dtype.kind == "c" or cand.dtype.kind == "c":
        return _real(ref), _real(cand)
    return ref, cand


def _real(array: Array) -> Array:
    """Complex numbers as pairs of reals along a last axis; reals, in their own type, beside nothing."""
    if array.dtype.kind != "c":
        pairs = np.zeros((*array.shape, 2), array.dtype)
        pairs[..., 0] = array
        return pairs
    return np.ascontiguousarray(array).reshape(array.shape)[..., None].view(np.dtype(f"f{array.dtype.itemsize // 2}"))


def _is_plain_memory(array: Array) -> bool:
    flags = array.flags
    return bool(flags.c_contiguous and flags.aligned)


def warm_up(ref: DType, cand: DType) -> None:
    """Make the compiled pass ready for a pair of types, now, and use it from now on."""
    _history.loaded.add(plan_for(ref, cand).enter)
    measure(np.zeros(4, ref), np.zeros(4, cand))


def _collected(pair: _Prepared) -> Cells:
    """The cells of a pair that is measured in numpy, or converted for the compiled pass part by part."""
    sums = Sums.empty(pair.ref.size)
    if pair.is_compiled:
        for part in in_order(lambda part: _scanned(pair, *part), flat_parts(pair.ref, pair.cand)):
            sums.add(part)
    else:
        for offset, r, c in flat_parts(pair.ref, pair.cand):
            plain.collect(r, c, offset, sums, pair.how.tolerance.atol, pair.how.tolerance.rtol)
    return sums.cells


def _scanned(pair: _Prepared, offset: int, ref: Array, cand: Array) -> Sums:
    whole = pair.ref.size
    return Sums(whole, scan_part(pair.how, *pair.plan.convert(ref, cand), offset, whole))


def _products(pair: _Prepared, factor: float) -> Products:
    total = np.zeros(5)
    for _, r, c in flat_parts(pair.ref, pair.cand):
        if not pair.is_compiled or factor != 1:
            total += plain.products(r, c, factor)
        else:
            load_kernels().exact_products(*pair.plan.convert(r, c), total)
    return Products(*total.tolist())
