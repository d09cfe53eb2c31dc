"""Measuring a pair of parameters in blocks of rows, and whether dtypes explain the difference.

Two sides of one dtype must be equal. If one side is coarser, each element may be off by half a unit in its last place
(by the sum of both halves, if both were rounded from a third). If one is quantized, it may be off by about a step of
its block's scale. A difference within these limits that still has a direction (a factor of 1.002) is not explained.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.measure.diff import BUCKETS, Diff
from tensordiff.compare.measure.dispatch import measure_stretches
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.dump.dtypes import Array, DType, is_float, name_of
from tensordiff.dump.model import Spec, StoredTensor
from tensordiff.weights.packed import quantization_of, smallest_of
from tensordiff.weights.quantization import HALF_SMALLEST_STEP, UNIT_ROUNDOFF, Quantization
from tensordiff.weights.samples import slack_of_bits
from tensordiff.weights.views import BLOCK_ELEMENTS, read_rows, row_ranges

_ROUNDED_TWICE = 1 + 2.0**-6  # a margin for values that were rounded to an intermediate dtype first
_LAST_BITS = 4.0  # unit roundoffs by which equal float32 computations may differ
_SUPERBLOCK = 256  # elements that share the scale of a block's scales
_FAR_STEPS = 3.0
"""No element of a quantized tensor is off by so many steps, however its scales were chosen."""
_INFINITE: dict[str, np.unsignedinteger[Any]] = {
    "float16": np.uint16(0x7C00), "bfloat16": np.uint16(0x7F80), "float32": np.uint32(0x7F800000),
    "float64": np.uint64(0x7FF0000000000000),
}  # fmt: skip
"""The bits of infinity; NaN lies beyond."""
_CACHE_ELEMENTS = 1 << 18


class Measured(NamedTuple):
    """The numbers of a pair, and what explains them."""

    diff: Diff
    explained: str | None
    """Why the difference does not matter: equal, rounding, quantization; None if it does."""


def measure_pair(ref: StoredTensor, cand: StoredTensor, tolerance: Tolerance | None = None) -> Measured:
    """Compare two tensors of one shape. The user's ``tolerance`` replaces that of the dtypes."""
    if are_same_bits(ref, cand):
        return Measured(_equal_diff(ref.spec), "equal")
    quantized = [found for side in (ref, cand) if (found := quantization_of(side)) is not None]
    packed = min((one for one in quantized if one.bits), key=lambda one: one.bits, default=None)
    steps = _QuantizationErrors(packed) if packed is not None else None
    rounding, name = rounding_of(ref.spec.dtype, cand.spec.dtype)
    if quantized and packed is None:
        units = sum(UNIT_ROUNDOFF.get(one.name, 2.0**-4) for one in quantized)
        rounding, name = Tolerance(0.0, units * _ROUNDED_TWICE), quantized[0].name
    smallest = [each for side in (ref, cand) if packed is None and (each := smallest_of(side)) is not None]
    counted: list[int] = []
    has_begun = False

    def stretches() -> Iterator[tuple[Array, Array]]:
        nonlocal has_begun
        is_first_time, has_begun = not has_begun, True
        for r, c, *allowed in blocks(ref, cand, *smallest):
            if is_first_time and steps is not None:
                steps.add(r, c, is_reference=quantization_of(ref) is not None)
            if is_first_time and allowed and tolerance is None:
                counted.append(_outside(r, c, rounding.rtol, allowed))
            yield r, c

    diff = measure_stretches(stretches, (ref.spec, cand.spec), tolerance or rounding)
    if smallest and tolerance is None:
        diff = diff._replace(outside=diff.apart + sum(counted))
    return Measured(diff, _explanation(diff, rounding, name, steps))


def _outside(ref: Array, cand: Array, rtol: float, allowed: list[Array]) -> int:
    """How many elements are off by more than relative rounding plus the smallest absolute error of each side."""
    with np.errstate(all="ignore"):
        r, c = (side.astype(np.float64) for side in (ref, cand))
        room = rtol * np.abs(r) + _ROUNDED_TWICE * np.sum([part.astype(np.float64) for part in allowed], axis=0)
        return int(np.count_nonzero(np.abs(r - c) > room))


def blocks(*sides: StoredTensor) -> Iterator[tuple[Array, ...]]:
    """Tensors of one shape, a stretch of rows at a time."""
    spec = sides[0].spec
    if spec.size <= BLOCK_ELEMENTS or not spec.shape:
        yield tuple(np.asarray(side.read()) for side in sides)
        return
    for start, stop in row_ranges(spec.shape):
        yield tuple(read_rows(side, start, stop) for side in sides)


def are_same_bits(ref: StoredTensor, cand: StoredTensor) -> bool:
    """Whether both sides hold the same bits, all of them finite, which is true of most parameters of most pairs.

    It is decided at the speed of memory, and stops at the first difference.
    """
    if ref.spec != cand.spec or name_of(ref.spec.dtype) not in _INFINITE or not ref.spec.size:
        return False
    return all(_are_same(*arrays) for arrays in blocks(ref, cand))


def _are_same(ref: Array, cand: Array) -> bool:
    if not (ref.flags.c_contiguous and cand.flags.c_contiguous and ref.dtype.isnative and cand.dtype.isnative):
        return False
    infinite = _INFINITE[name_of(ref.dtype)]
    ours, theirs = (side.reshape(-1).view(infinite.dtype) for side in (ref, cand))
    for start in range(0, ours.size, _CACHE_ELEMENTS):
        some = ours[start : start + _CACHE_ELEMENTS]
        if not np.array_equal(some, theirs[start : start + _CACHE_ELEMENTS]):
            return False
        if (some & ~_sign(infinite)).max() >= infinite:
            return False
    return True


def _sign(infinite: np.unsignedinteger[Any]) -> np.unsignedinteger[Any]:
    kind = infinite.dtype.type
    sign: np.unsignedinteger[Any] = kind(1 << (8 * infinite.dtype.itemsize - 1))
    return sign


def _equal_diff(spec: Spec) -> Diff:
    """The numbers of two equal sides; how large their values are was not measured."""
    return Diff(
        max_abs=0.0, max_abs_at=0, max_rel=0.0, max_rel_at=0, mean_abs=0.0, mse=0.0, rms=0.0, rel_l2=0.0,
        cosine_distance=0.0, outside=0, elements=spec.size, nan=(0, 0), inf=(0, 0), apart=0, ref_rms=math.nan,
        scale=1.0, bucket_rms=np.zeros(min(BUCKETS, spec.size)), shape=spec.shape,
    )  # fmt: skip


def rounding_of(ref: DType, cand: DType) -> tuple[Tolerance, str]:
    """By how much two dtypes let the sides differ, and the name of the coarser one."""
    ours, theirs = name_of(ref), name_of(cand)
    if not (is_float(ref) and is_float(cand)):
        return Tolerance(), ours
    one, other = UNIT_ROUNDOFF.get(ours, 2.0**-3), UNIT_ROUNDOFF.get(theirs, 2.0**-3)
    coarser = ours if one >= other else theirs
    if ours == theirs:
        return (Tolerance(0.0, _LAST_BITS * one) if one <= UNIT_ROUNDOFF["float32"] else Tolerance()), ours
    smallest = HALF_SMALLEST_STEP.get(ours, 0.0) + HALF_SMALLEST_STEP.get(theirs, 0.0)
    return Tolerance(smallest * _ROUNDED_TWICE, (one + other) * _ROUNDED_TWICE), coarser


def _explanation(diff: Diff, rounding: Tolerance, coarser: str, steps: _QuantizationErrors | None) -> str | None:
    if diff.apart:
        return None
    if diff.max_abs == 0:
        return "equal"
    if steps is not None:
        return steps.explanation(diff)
    if diff.outside or not rounding.rtol or _has_direction(diff, 2 * rounding.rtol):
        return None
    return "equal up to the last bits" if rounding.rtol < 1e-6 else f"equal up to rounding to {coarser}"


def _has_direction(diff: Diff, unit: float) -> bool:
    """Whether the best factor between the sides is further from 1 than chance brings it."""
    if diff.elements < 64 or not math.isfinite(diff.scale):
        return False
    return abs(diff.scale - 1) > 6 * unit / math.sqrt(diff.elements) + unit * unit


class _QuantizationErrors:
    """Errors relative to the steps of a quantization, summed over blocks of rows."""

    def __init__(self, quantization: Quantization) -> None:
        self.quantization = quantization
        self.elements = self.outside = self.far = 0
        self.errors = self.steps = 0.0

    def add(self, ref: Array, cand: Array, *, is_reference: bool) -> None:
        """Count one block of rows; the side that is not quantized shows how large a block's values are."""
        plain, other = (cand, ref) if is_reference else (ref, cand)
        with np.errstate(all="ignore"):
            values = plain.astype(np.float32).reshape(-1, plain.shape[-1] if plain.ndim else 1)
            error = np.abs(values - other.astype(np.float32).reshape(values.shape))
        length = self.quantization.block if self.quantization.is_exact_scale else _SUPERBLOCK
        if values.shape[-1] % length:
            length = values.shape[-1]
        parts = values.reshape(-1, length)
        step = self._step(parts)
        self.elements += error.size
        self.errors += float(np.sum(error.astype(np.float64) ** 2))
        self.steps += float(np.sum(step.astype(np.float64) ** 2)) * length
        off = error.reshape(parts.shape)
        self.outside += int(np.count_nonzero(off > 1.25 * step[:, None]))
        self.far += int(np.count_nonzero(off > _FAR_STEPS * step[:, None]))

    def _step(self, parts: NDArray[np.float32]) -> NDArray[np.float32]:
        """The distance of neighbouring values in a block, as wide as a 16-bit scale may make it."""
        largest = np.abs(parts).max(axis=-1)
        step: NDArray[np.float32] = largest * (2 / (2**self.quantization.bits - 1) + 2.0**-9)
        return step

    def explanation(self, diff: Diff) -> str | None:
        """What to say if the steps explain the error, else None."""
        if not self.elements:
            return None
        noise = math.sqrt(self.errors / self.elements)
        rel = diff.rel_l2
        leaning = 0.01 + 2 * rel * rel + 8 * rel / math.sqrt(self.elements)
        is_noise = (
            rel <= slack_of_bits(self.quantization.bits)
            and noise <= 0.6 * math.sqrt(self.steps / self.elements)
            and abs(diff.scale - 1) <= leaning
        )
        if self.quantization.is_calibrated and rel <= 2 * slack_of_bits(self.quantization.bits):
            is_near = noise <= math.sqrt(self.steps / self.elements) and abs(diff.scale - 1) <= leaning
            is_near = is_near and self.far <= 0.001 * self.elements
            return f"as close as calibration allows ({self.quantization.name})" if is_near else None
        if not is_noise or self.far or self.outside > 0.001 * self.elements:
            return None
        return f"equal up to quantization ({self.quantization.name})"
