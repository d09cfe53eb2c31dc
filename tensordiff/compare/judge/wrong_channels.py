"""Channels and tokens that are completely wrong beside others that dominate the norm.

Large elements, and the majority of elements, dominate a norm. If a third of the channels are a hundred times as large
as the others, as keys beside values in one fused tensor may be, the other channels can hold arbitrary numbers and
bfloat16 would explain the error. And one completely wrong channel among thousands is 2 % of a norm. So before a pair
agrees by its norm,

- no more than half of its elements may be off by more than half of themselves,
- no tenth of its channels or tokens may be off by more than half of itself, unless cancelling large terms leave that
  much behind,
- and in few bits the channel with the largest error must be right, if it is as large as most.

The first two checks read a few thousand elements, and only if enough lie outside the usual tolerance of their type. The
last one reads one channel, and only if an element is off by as much as elements are large.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.judge.evidence import Measurement
from tensordiff.compare.judge.uneven_errors import MANY_OUTSIDE
from tensordiff.compare.judge.verdict import EIGHT_BITS, GROWTH, UNITS, Verdict, floor_for, growth_of, judge_diff
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.dispatch import as_reals
from tensordiff.compare.measure.dtype_plan import usual_tolerance
from tensordiff.compare.row import Row, values_of
from tensordiff.dump.dtypes import Array, is_float

Reals = NDArray[np.float64]
_MAY_VANISH = ("float8", EIGHT_BITS)
"""Types of so few bits that small values beside large ones become zero."""
_HALF_WRONG = 0.5
_MOST = 0.5  # share of the elements
_TENTH = 0.1  # share of the channels or tokens
_FEWEST = 4  # elements: of a tensor, of a channel, of a token
_SIDE = 64  # channels and tokens that are read
_CANCELLED = 2.0  # half steps of the type, at the size of the whole tensor, that cancelling terms leave behind
_WIDTH = 32  # channels; a shorter last axis may be time, as in convolutions and their caches
_TOKENS = 16
_SMALL = 0.3  # size of an element relative to the usual, below which the usual size is used instead
_WRONG_CHANNEL = 3.0  # factor over the limit of healthy layers from which a channel is wrong


class WrongPart(NamedTuple):
    """A part of a pair that is completely wrong."""

    error: float
    told: str
    """Names the part, in a sentence that ends with the error."""
    is_tokens: bool = False
    """Whether the part is tokens, which may be wrong because they were sent to other experts."""


def wrong_part(row: Row, measured: Measurement, carried: float | None, *, is_padded: bool) -> WrongPart | None:
    """The completely wrong part of a pair that seems right by its norm, if there is one.

    Tokens of a step that ``is_padded`` may hold anything.
    """
    diff, (kind, floor) = measured.diff, floor_for(*measured.dtypes)
    is_clean = carried is None or carried <= floor.agrees
    seems_right = row.verdict.name == "agrees" or (row.verdict.name == "drifts" and is_clean)
    if kind == "exact" or diff.apart or not seems_right:
        return None
    found = _of_small_parts(row, measured, is_padded=is_padded)
    if found is None and growth_of(kind) != GROWTH and measured.golden is None:
        found = _of_loudest_channel(row, measured)
    return found


def of_wrong_part(part: WrongPart, measured: Measurement, carried: float | None) -> Verdict:
    """Judge a pair by its wrong part."""
    verdict = judge_diff(measured.diff._replace(rel_l2=part.error), measured.dtypes, carried, Limits())
    why = f"rel_l2 {measured.diff.rel_l2:.1e} hides that {part.told} {part.error:.1e}"
    return Verdict(verdict.name, why)


def _of_small_parts(row: Row, measured: Measurement, *, is_padded: bool) -> WrongPart | None:
    """Elements, channels or tokens that are small beside others, and wrong."""
    diff, (kind, _) = measured.diff, floor_for(*measured.dtypes)
    if kind in _MAY_VANISH or diff.elements < _FEWEST or diff.outside < MANY_OUTSIDE * diff.elements:
        return None
    values = values_of(row.pair)
    if values is None:
        return None
    ref, cand = (_some(side) for side in as_reals(*values))
    with np.errstate(all="ignore"):
        off = np.abs(np.nan_to_num(cand - ref))
        usual = usual_tolerance(*measured.dtypes)
        wrong = off > np.maximum(_HALF_WRONG * np.abs(ref), usual.atol + usual.rtol * np.abs(ref))
        if np.isfinite(ref).all() and wrong.mean() > _MOST:
            told = "most elements are off by half of themselves or more, half of them by"
            return WrongPart(_median_error(ref, off), told)
    noise = _CANCELLED * UNITS[kind] * diff.ref_rms
    for axis, name in ((0, "channels"), (1, "tokens")):
        if name == "tokens" and is_padded:
            continue
        if (error := _error_of_a_tenth(ref, off, axis, noise)) is not None:
            return WrongPart(error, f"a tenth of the {name} are completely wrong, off by", name == "tokens")
    return None


def _some(side: Array) -> Reals:
    """Channels and tokens spread over a tensor, as [tokens, channels]."""
    table = side.reshape(-1, side.shape[-1]) if side.ndim > 1 else side.reshape(1, -1)
    steps = (max(1, size // _SIDE) | 1 if size > _SIDE else 1 for size in table.shape)
    return np.asarray(table[tuple(slice(None, None, step) for step in steps)], dtype=np.float64)


def _median_error(ref: Reals, off: Reals) -> float:
    size = np.abs(ref)
    return float(np.median(off[size > 0] / size[size > 0])) if (size > 0).any() else float("inf")


def _error_of_a_tenth(ref: Reals, off: Reals, axis: int, noise: float) -> float | None:
    """The median error of the completely wrong slices along an axis, if they are at least a tenth and at least two."""
    length, count = ref.shape[axis], ref.shape[1 - axis]
    if length < _FEWEST or count < _FEWEST:
        return None
    with np.errstate(all="ignore"):
        of_ref, of_error = (np.square(np.nan_to_num(one)) for one in (ref, off))
        sizes, errors = (np.sqrt(one.mean(axis)) for one in (of_ref, of_error))
        wrong = (errors > _HALF_WRONG * sizes) & (errors > noise) & (sizes > 0)
        wrong &= _are_wrong_without_worst(of_ref, of_error, axis)
        if wrong.sum() < max(2.0, _TENTH * count):
            return None
        return float(np.median(errors[wrong] / sizes[wrong]))


def _are_wrong_without_worst(ref: Reals, off: Reals, axis: int) -> NDArray[np.bool_]:
    """Whether slices are also wrong without their worst element, which may be all that is wrong in a short one."""
    worst = np.expand_dims(off.argmax(axis), axis)
    rest = [one.sum(axis) - np.take_along_axis(one, worst, axis).squeeze(axis) for one in (ref, off)]
    return np.asarray(rest[1] > _HALF_WRONG**2 * rest[0])


def _of_loudest_channel(row: Row, measured: Measurement) -> WrongPart | None:
    """The channel with the largest error, if all of it is wrong and it is as large as most."""
    diff = measured.diff
    width = diff.shape[-1] if len(diff.shape) > 1 else 0
    if width < _WIDTH or diff.elements < _TOKENS * width or diff.is_complex or not diff.max_abs > diff.ref_rms > 0:
        return None
    values = values_of(row.pair)
    if values is None or not all(is_float(side.dtype) for side in values):
        return None
    channel = diff.max_abs_at % width
    with np.errstate(all="ignore"):
        ref, cand = (side.reshape(-1, width)[:, channel].astype(np.float64) for side in values)
        errors = np.abs(np.nan_to_num(cand - ref)) / np.maximum(np.abs(ref), _SMALL * diff.ref_rms)
    error = float(np.median(errors))
    if not error > _WRONG_CHANNEL * floor_for(*measured.dtypes)[1].diverges:
        return None
    return WrongPart(error, f"channel {channel} of {width} is completely wrong, half of it off by")
