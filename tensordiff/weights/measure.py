"""The numbers of a pair of parameters, block of rows by block of rows, and whether types explain the difference.

Two sides of one type must be equal. Where one side is coarser, each element may be off by half a unit of its last
place (two sides rounded from a third: by both halves); where one is quantized, by about a step of its block's scale. A
difference that stays within this and still has a direction (a factor of 1.002) is not explained.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.measure.diff import BUCKETS, Diff
from tensordiff.compare.measure.dispatch import measure
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.dump.dtypes import Array, DType, is_float, name_of
from tensordiff.dump.model import Spec, StoredTensor
from tensordiff.weights.packed import Quantization, quantization_of
from tensordiff.weights.samples import slack_of_bits
from tensordiff.weights.views import BLOCK_ELEMENTS, read_rows, row_ranges

_UNIT = {
    "float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float8_e4m3fn": 2.0**-4,
    "float8_e4m3fnuz": 2.0**-4, "float8_e5m2": 2.0**-3, "float8_e5m2fnuz": 2.0**-3,
}  # fmt: skip
_SMALLEST = {"float16": 2.0**-25, "float8_e4m3fn": 2.0**-10, "float8_e5m2": 2.0**-17, "float8_e4m3fnuz": 2.0**-11}
_ROUNDED_TWICE = 1 + 2.0**-6
_LAST_BITS = 4.0
_SUPERBLOCK = 256
_INFINITE: dict[str, np.unsignedinteger[Any]] = {
    "float16": np.uint16(0x7C00), "bfloat16": np.uint16(0x7F80), "float32": np.uint32(0x7F800000),
    "float64": np.uint64(0x7FF0000000000000),
}  # fmt: skip
"""The bits of infinity, beyond which is NaN."""
_IN_CACHE = 1 << 18


class Measured(NamedTuple):
    """The numbers of a pair, and what explains them."""

    diff: Diff
    explained: str | None
    """Why the difference means nothing: equal, rounding, quantization; None where it does mean something."""


def measure_pair(ref: StoredTensor, cand: StoredTensor, tolerance: Tolerance | None = None) -> Measured:
    """Compare two tensors of one shape. ``tolerance`` is the user's, and takes the place of that of the types."""
    if are_same_bits(ref, cand):
        return Measured(_equal_diff(ref.spec), "equal")
    coarse = quantization_of(cand) or quantization_of(ref)
    rounding, name = rounding_of(ref.spec.dtype, cand.spec.dtype)
    steps = _Steps(coarse) if coarse is not None and coarse.bits else None
    if coarse is not None and not coarse.bits:
        rounding, name = (
            Tolerance(coarse.smallest * _ROUNDED_TWICE, _UNIT.get(coarse.name, 2.0**-4) * _ROUNDED_TWICE),
            coarse.name,
        )
    diffs = []
    for r, c in blocks(ref, cand):
        diffs.append(measure(r, c, tolerance or rounding))
        if steps is not None:
            steps.add(r, c, is_reference=quantization_of(ref) is not None)
    diff = joined(diffs, ref.spec.shape) if len(diffs) != 1 else diffs[0]
    return Measured(diff, _explanation(diff, rounding, name, steps))


def blocks(ref: StoredTensor, cand: StoredTensor) -> Iterator[tuple[Array, Array]]:
    """Both sides a stretch of rows at a time."""
    shape = ref.spec.shape
    if ref.spec.size <= BLOCK_ELEMENTS or not shape:
        yield np.asarray(ref.read()), np.asarray(cand.read())
        return
    for start, stop in row_ranges(shape):
        yield read_rows(ref, start, stop), read_rows(cand, start, stop)


def are_same_bits(ref: StoredTensor, cand: StoredTensor) -> bool:
    """Whether both sides hold the same bits, all of them finite: most parameters of most pairs do.

    It is decided at the speed of memory, and stops at the first difference.
    """
    if ref.spec != cand.spec or name_of(ref.spec.dtype) not in _INFINITE or not ref.spec.size:
        return False
    return all(_are_same(r, c) for r, c in blocks(ref, cand))


def _are_same(ref: Array, cand: Array) -> bool:
    if not (ref.flags.c_contiguous and cand.flags.c_contiguous and ref.dtype.isnative and cand.dtype.isnative):
        return False
    infinite = _INFINITE[name_of(ref.dtype)]
    ours, theirs = (side.reshape(-1).view(infinite.dtype) for side in (ref, cand))
    for start in range(0, ours.size, _IN_CACHE):
        some = ours[start : start + _IN_CACHE]
        if not np.array_equal(some, theirs[start : start + _IN_CACHE]):
            return False
        if (some & ~_sign(infinite)).max() >= infinite:
            return False
    return True


def _sign(infinite: np.unsignedinteger[Any]) -> np.unsignedinteger[Any]:
    kind = infinite.dtype.type
    sign: np.unsignedinteger[Any] = kind(1 << (8 * infinite.dtype.itemsize - 1))
    return sign


def _equal_diff(spec: Spec) -> Diff:
    """The numbers of two sides that are the same; how large their values are was not measured."""
    return Diff(
        max_abs=0.0, max_abs_at=0, max_rel=0.0, max_rel_at=0, mean_abs=0.0, mse=0.0, rms=0.0, rel_l2=0.0,
        cosine_distance=0.0, outside=0, elements=spec.size, nan=(0, 0), inf=(0, 0), apart=0, ref_rms=math.nan,
        scale=1.0, bucket_rms=np.zeros(min(BUCKETS, spec.size)), shape=spec.shape,
    )  # fmt: skip


def rounding_of(ref: DType, cand: DType) -> tuple[Tolerance, str]:
    """What the types of two sides let differ, and the name of the coarser."""
    ours, theirs = name_of(ref), name_of(cand)
    if not (is_float(ref) and is_float(cand)):
        return Tolerance(), ours
    one, other = _UNIT.get(ours, 2.0**-3), _UNIT.get(theirs, 2.0**-3)
    coarser = ours if one >= other else theirs
    if ours == theirs:
        return (Tolerance(0.0, _LAST_BITS * one) if one <= _UNIT["float32"] else Tolerance()), ours
    smallest = _SMALLEST.get(ours, 0.0) + _SMALLEST.get(theirs, 0.0)
    return Tolerance(smallest * _ROUNDED_TWICE, (one + other) * _ROUNDED_TWICE), coarser


def _explanation(diff: Diff, rounding: Tolerance, coarser: str, steps: _Steps | None) -> str | None:
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


class _Steps:
    """How large errors are beside the steps of a quantization, summed over blocks of rows."""

    def __init__(self, quantization: Quantization) -> None:
        self.quantization = quantization
        self.elements = self.outside = 0
        self.errors = self.steps = 0.0

    def add(self, ref: Array, cand: Array, *, is_reference: bool) -> None:
        """Count one block of rows; the plain side says how large a block's values are."""
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
        self.outside += int(np.count_nonzero(error.reshape(parts.shape) > 1.25 * step[:, None]))

    def _step(self, parts: NDArray[np.float32]) -> NDArray[np.float32]:
        """The distance of neighbouring values in a block, as wide as a scale in 16 bits may make it."""
        largest = np.abs(parts).max(axis=-1)
        step: NDArray[np.float32] = largest * (2 / (2**self.quantization.bits - 1) + 2.0**-9)
        return step

    def explanation(self, diff: Diff) -> str | None:
        """What to say where the steps explain the error."""
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
        if not is_noise or self.outside > 0.001 * self.elements:
            return None
        return f"equal up to quantization ({self.quantization.name})"


def joined(diffs: list[Diff], shape: tuple[int, ...]) -> Diff:
    """The numbers of a whole from those of its blocks of rows, in order."""
    if not diffs:
        empty = np.zeros((0,), np.float32)
        return measure(empty, empty)._replace(shape=shape)
    sizes = np.array([diff.elements for diff in diffs], np.float64)
    total = float(sizes.sum())
    offsets = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)

    def mean(name: str, power: int = 1) -> float:
        return float(np.sum(sizes * np.array([getattr(diff, name) for diff in diffs]) ** power) / total)

    worst = max(range(len(diffs)), key=lambda k: _nan_first(diffs[k].max_abs))
    worst_rel = max(range(len(diffs)), key=lambda k: _nan_first(diffs[k].max_rel))
    mse, power = mean("mse"), mean("ref_rms", 2)
    products = [n * d.scale * d.ref_rms**2 if d.ref_rms else 0.0 for n, d in zip(sizes, diffs, strict=True)]
    scale = float(np.sum(products)) / (total * power) if power else math.nan
    other = max(0.0, mse - power + 2 * scale * power) if power else mse
    lengths = math.sqrt(power) * math.sqrt(other)
    gap = (math.sqrt(other) - math.sqrt(power)) ** 2
    return diffs[0]._replace(
        max_abs=diffs[worst].max_abs, max_abs_at=int(offsets[worst]) + diffs[worst].max_abs_at,
        max_rel=diffs[worst_rel].max_rel, max_rel_at=int(offsets[worst_rel]) + diffs[worst_rel].max_rel_at,
        mean_abs=mean("mean_abs"), mse=mse, rms=math.sqrt(mse),
        rel_l2=math.sqrt(mse / power) if power else (math.inf if mse else 0.0),
        cosine_distance=max(0.0, mse - gap) / (2 * lengths) if lengths else (1.0 if mse else 0.0),
        outside=sum(d.outside for d in diffs), elements=int(total),
        nan=(sum(d.nan[0] for d in diffs), sum(d.nan[1] for d in diffs)),
        inf=(sum(d.inf[0] for d in diffs), sum(d.inf[1] for d in diffs)),
        apart=sum(d.apart for d in diffs), ref_rms=math.sqrt(power), scale=scale,
        bucket_rms=np.array([d.rms for d in diffs]), shape=shape,
    )  # fmt: skip


def _nan_first(value: float) -> float:
    return math.inf if math.isnan(value) else value
