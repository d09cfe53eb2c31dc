"""Masks: numbers so far below zero that a softmax ignores the places where they stand.

A float16 run cannot hold the -3.4e38 that a float32 run masks with, and some runs use minus infinity. Masks that hide
the same places agree, whatever numbers they use. In scores that are already masked, the mask's numbers dominate the
norm. So places that both sides hide are left out, and only the visible scores are judged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.align.match import Pair
from tensordiff.compare.measure.chunks import flat_chunks
from tensordiff.compare.measure.diff import Diff, Products, Sums
from tensordiff.compare.measure.dtype_plan import usual_tolerance
from tensordiff.compare.measure.metrics import SecondSums, diffs_from_cells
from tensordiff.compare.measure.numpy_pass import collect, products
from tensordiff.compare.measure.wide_range import measure_wide
from tensordiff.compare.row import values_of
from tensordiff.dump.dtypes import Array, is_real_float, name_of

HIDDEN = -1e4
"""A mask hides places with this number or less."""
_HIDDEN_SCORE = 0.9 * HIDDEN  # masked scores may be a little above the mask's own number
_LOUD_RMS = 100.0  # RMS of a reference in which one place in ten thousand may be hidden
_FLOAT_LIMITS = (65504.0, float(np.finfo(np.float32).max))
_SAME = 1e-2  # relative distance from the numbers that masks usually use
_SPREAD = 1e-4  # relative spread of a mask's number after scores were added to it: bfloat16 rounds the sum
_SAMPLE = 1 << 16  # elements that are checked before all are read
_NO_LETTERS = re.compile(r"[^a-z]+")


def is_same_mask(pair: Pair, diff: Diff) -> bool:
    """Whether both sides are masks that hide the same places. They are read only if the measured error allows it."""
    is_named = _is_named(pair)
    may_be = (is_named or pair.reference.is_input) and (diff.apart or diff.max_abs >= -HIDDEN / 2)
    sides = values_of(pair) if may_be else None
    if sides is None or not all(is_real_float(side.dtype) for side in sides):
        return False
    ref, cand = sides
    if not (_is_mask(ref) and _is_mask(cand) and ((ref == 0) == (cand == 0)).all()):
        return False
    return is_named or bool((ref == 0).any())


def _is_named(pair: Pair) -> bool:
    """Whether a word of the name ends in mask; a name like ``masked`` or ``unmask`` does not count."""
    words = _NO_LETTERS.split(pair.reference.name.lower())
    return any(word.endswith(("mask", "masks")) and not word.startswith("unmask") for word in words)


def _is_mask(side: Array) -> bool:
    """Whether every element is either 0 (visible) or far below (hidden), and some are hidden."""
    hidden = _hidden(side)
    return bool(((side == 0) | hidden).all() and hidden.any())


def _hidden(side: Array, most: float = HIDDEN) -> NDArray[np.bool_]:
    with np.errstate(all="ignore"):
        return np.asarray(side.astype(np.float64) <= most)


# --- scores that are masked already ------------------------------------------------------------------


def diff_of_visible(pair: Pair, diff: Diff) -> Diff | None:
    """The numbers of masked scores without the places that both sides hide; None if that changes nothing.

    Hidden places count as equal: they add nothing to any number, like infinities in the same place. Large activations
    may look like a mask, so numbers that masks are not made of are left out only if that makes the error larger.
    """
    if not (diff.ref_rms >= _LOUD_RMS or diff.apart) or not diff.elements or diff.is_complex:
        return None
    sides = values_of(pair)
    if sides is None or not all(is_real_float(side.dtype) for side in sides):
        return None
    ref, cand = sides
    sample = ref.reshape(-1)[:: max(1, ref.size // _SAMPLE) | 1] if ref.flags.c_contiguous else ref
    if not _hidden(sample, _HIDDEN_SCORE).any():
        return None
    places = _hidden_places(ref, cand)
    if not 0 < places[0].hidden < ref.size:
        return None
    visible = _measure_visible(ref, cand)
    if visible.ref_rms == visible.max_abs == 0:
        return None  # a mask without scores, see is_same_mask
    is_mask = all(place.is_mask for place in places)
    return visible if is_mask or not visible.rel_l2 <= diff.rel_l2 else None


class _HiddenPlaces(NamedTuple):
    """What one side holds at the places that both sides hide, and how large the rest is."""

    hidden: int
    low: float
    high: float
    reach: float
    """The largest magnitude of a visible value."""

    @property
    def is_mask(self) -> bool:
        """Whether the hidden places hold one of the numbers that masks are made of, give or take a score."""
        if self.low == self.high == -math.inf:
            return True
        if not math.isfinite(self.low) or not self.reach < -HIDDEN / 2:
            return False
        spread = 2 * self.reach + _SPREAD * abs(self.low)
        return self.high - self.low <= spread and _is_usual(self.low / 2 + self.high / 2)


def _hidden_places(ref: Array, cand: Array) -> tuple[_HiddenPlaces, _HiddenPlaces]:
    sides = [_HiddenPlaces(0, math.inf, -math.inf, 0.0)] * 2
    for _, *parts in flat_chunks(ref, cand):
        wide = [part.astype(np.float64) for part in parts]
        hidden = (wide[0] <= _HIDDEN_SCORE) & (wide[1] <= _HIDDEN_SCORE)
        sides = [_with_chunk(side, part, hidden) for side, part in zip(sides, wide, strict=True)]
    return sides[0], sides[1]


def _with_chunk(side: _HiddenPlaces, values: NDArray[np.float64], hidden: NDArray[np.bool_]) -> _HiddenPlaces:
    inside, outside = values[hidden], np.abs(values[~hidden])
    return _HiddenPlaces(
        side.hidden + int(hidden.sum()),
        min(side.low, float(inside.min(initial=math.inf))),
        max(side.high, float(inside.max(initial=-math.inf))),
        max(side.reach, float(outside.max(initial=0.0))),
    )


def _measure_visible(ref: Array, cand: Array) -> Diff:
    """The numbers of a pair with all places that both sides hide set to zero."""

    def visible() -> Iterator[tuple[int, Array, Array]]:
        for offset, *parts in flat_chunks(ref, cand):
            r, c = (part.astype(np.float64) for part in parts)
            hidden = (r <= _HIDDEN_SCORE) & (c <= _HIDDEN_SCORE)
            yield offset, np.where(hidden, 0.0, r), np.where(hidden, 0.0, c)

    def again(_: int) -> Products:
        parts = [products(r, c) for _, r, c in visible()]
        return Products(*map(math.fsum, zip(*parts, strict=True)))

    sums, usual = Sums.empty(ref.size), usual_tolerance(name_of(ref.dtype), name_of(cand.dtype))
    for offset, r, c in visible():
        collect(r, c, offset, sums, usual.atol, usual.rtol)
    second = SecondSums(again, [0], lambda _: measure_wide(visible, ref.size, usual))
    return diffs_from_cells([ref.size], [ref.shape], sums.cells[np.newaxis], second, None)[0]


def _is_usual(number: float) -> bool:
    """Whether masks are usually made of a number: a power of ten, the lowest number of a type, or half of it."""
    size = abs(number)
    if size >= 1e30:
        return True
    power = 10.0 ** round(math.log10(size))
    near = (power, *_FLOAT_LIMITS, *(limit / 2 for limit in _FLOAT_LIMITS))
    return any(abs(size - usual) <= _SAME * usual for usual in near)
