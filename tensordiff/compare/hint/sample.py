"""What the catalogue's tests look at: a bounded sample of a pair, and whether a kind explains its error.

A tensor is arranged as [groups, tokens, channels]: the last axis is channels, the one before it tokens, all others
groups. Only samples are read, so that a hint is cheap for any tensor: the first rows (whole, for tests that depend on
layout; only the beginning of a row that is too long), and tokens spread over the tensor (with some of their channels,
for tests that depend on position). Complex numbers become pairs of reals in the sample only. No test of the catalogue
reads the tensors themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.hint.context import HintContext
from tensordiff.compare.judge.verdict import UNITS, Floor, floor_for
from tensordiff.dump.dtypes import Array, DType, name_of

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Indices = NDArray[np.int64]
_Part = tuple[slice, slice, slice] | tuple[Indices, ...]

SAMPLE_SIZE = 1 << 18
"""Maximum number of elements in a sample."""
SAMPLED_TOKENS = 1024
"""Maximum number of tokens in a sample that is spread over the tensor."""
SCATTERED_SIZE = 1 << 16
"""Maximum number of elements in a sample that is spread over the tensor."""
UNEXPLAINED = 0.02
"""The share of an error that a kind may leave unexplained."""
UNEXPLAINED_NOISE = 0.3
"""The same if the rest is no more than rounding."""
_EXACT_INTEGERS = 2.0**53
_NO_CONTEXT = HintContext()


class Sample:
    """Some values of a pair, [groups, tokens, channels]; places that are not finite on either side hold zeros."""

    def __init__(self, ref: Array, cand: Array, tokens: Indices, unit: float | None = None) -> None:
        wide_ref, wide_cand = ref.astype(np.float64), cand.astype(np.float64)
        odd = ~(np.isfinite(wide_ref) & np.isfinite(wide_cand))
        same = (wide_ref == wide_cand) | (np.isnan(wide_ref) & np.isnan(wide_cand))
        self.nonfinite: tuple[Floats, Floats, Mask] | None = None
        if odd.any():
            if (apart := odd & ~same).any():
                self.nonfinite = wide_ref, wide_cand, apart
            wide_ref, wide_cand = np.where(odd, 0.0, wide_ref), np.where(odd, 0.0, wide_cand)
        self.unit = unit or _unit(wide_ref, wide_cand)
        self.ref, self.cand, self.tokens = wide_ref / self.unit, wide_cand / self.unit, tokens

    @cached_property
    def error(self) -> Floats:
        """candidate - reference, divided by the unit."""
        return self.cand - self.ref

    @cached_property
    def least(self) -> float:
        """The smallest RMS among error, reference and candidate."""
        return min(map(rms, (self.error, self.ref, self.cand)))

    def part(self, tokens: slice) -> Sample:
        """The sample of only some tokens."""
        return Sample(self.ref[:, tokens], self.cand[:, tokens], self.tokens[tokens], 1.0)


def _unit(ref: Floats, cand: Floats) -> float:
    """A power of two near the largest value; all values are divided by it, so that no square overflows."""
    largest = max(float(np.abs(side).max(initial=0.0)) for side in (ref, cand))
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest else 1.0


def rms_along(values: Floats, axis: tuple[int, ...] | None = None) -> Floats:
    """Root mean square along some axes; 0 if there are no values."""
    count = values.size if axis is None else math.prod(values.shape[a] for a in axis)
    return np.asarray(np.sqrt(np.square(values).sum(axis) / max(1, count)))


def rms(values: Floats) -> float:
    """The RMS of all values."""
    return float(rms_along(values))


@dataclass(frozen=True)
class SampledPair:
    """A pair of tensors of one shape, arranged as [groups, tokens, channels]."""

    shape: tuple[int, ...]
    raw: tuple[Array, Array]
    """The tensors as they are in memory, with complex numbers not yet split."""
    context: HintContext = _NO_CONTEXT
    """The context of the pair."""

    @classmethod
    def of(cls, ref: Array, cand: Array, context: HintContext = _NO_CONTEXT) -> SampledPair:
        """Sample a pair of one shape; complex numbers are pairs of reals along the channels.

        If the axes before the tokens cannot be joined without a copy, only the first slice of the outermost axis is
        used.
        """
        while ref.ndim > 3 and ref.size > SAMPLE_SIZE and not (ref.flags.c_contiguous and cand.flags.c_contiguous):
            ref, cand = ref[0], cand[0]
        return cls(ref.shape, (_as_three_axes(ref), _as_three_axes(cand)), context)

    @cached_property
    def _reals(self) -> int:
        """The number of channels per number."""
        return 2 if any(side.dtype.kind == "c" for side in self.raw) else 1

    def _sample(self, part: _Part, tokens: Indices, unit: float | None = None) -> Sample:
        """A part of both sides; its last axis counts numbers, and a complex number is two channels."""
        sides = (side[part] for side in self.raw)
        ref, cand = (_as_reals(side) for side in sides) if self._reals > 1 else sides
        return Sample(ref, cand, tokens, unit)

    @property
    def groups(self) -> int:
        """The length of all axes before the tokens, joined."""
        return int(self.raw[0].shape[0])

    @property
    def tokens(self) -> int:
        """The length of the axis before the last."""
        return int(self.raw[0].shape[1])

    @property
    def channels(self) -> int:
        """The length of the last axis."""
        return int(self.raw[0].shape[2]) * self._reals

    @property
    def dtypes(self) -> tuple[DType, DType]:
        """The types of the reference and the candidate; for complex numbers those of their parts."""
        ref, cand = (side.dtype if side.dtype.kind != "c" else side[:0].real.dtype for side in self.raw)
        return ref, cand

    @cached_property
    def _precision(self) -> tuple[str, Floor]:
        """The type that defines rounding, and its floor: the coarsest on the way, if that is known."""
        reference, candidate = self.context.computed_in or map(name_of, self.dtypes)
        return floor_for(reference, candidate)

    @property
    def floor(self) -> float:
        """The error (rel_l2) that precision explains."""
        return self._precision[1].agrees

    @property
    def unit(self) -> float:
        """The relative error of one rounding, in the coarser type."""
        return UNITS.get(self._precision[0], 0.0)

    @property
    def quiet(self) -> float:
        """The largest error of a right token or channel: the floor, or less if the incoming error is small."""
        return min(self.floor, 3 * self.context.carried) if self.context.carried else self.floor

    @property
    def healthy(self) -> float:
        """The largest error of a healthy layer."""
        return self._precision[1].diverges

    @cached_property
    def rows(self) -> Sample:
        """The first tokens of the first groups with all their channels, or as many as a sample holds."""
        channels = max(self._reals, min(self.channels, SAMPLE_SIZE))
        few = max(1, SAMPLE_SIZE // (16 * channels))
        groups = min(self.groups, few)
        tokens = min(self.tokens, max(1, SAMPLE_SIZE // (max(1, groups) * channels)))
        return self._sample((slice(groups), slice(tokens), slice(channels // self._reals)), np.arange(tokens))

    @cached_property
    def across(self) -> Sample:
        """Tokens spread over the whole tensor, with some of their channels."""
        if self.sees_all:
            return self.rows
        tokens = evenly_spaced(self.tokens, SAMPLED_TOKENS)
        channels = evenly_spaced(self.channels // self._reals, max(1, SCATTERED_SIZE // (len(tokens) * self._reals)))
        groups = evenly_spaced(self.groups, max(1, SCATTERED_SIZE // (len(tokens) * len(channels))))
        return self._sample(np.ix_(groups, tokens, channels), tokens, self.rows.unit)

    @cached_property
    def corner(self) -> Sample:
        """The first tokens and as many channels."""
        side = min(self.tokens, self.channels, math.isqrt(SAMPLE_SIZE))
        groups = min(self.groups, max(1, SAMPLE_SIZE // (side * side)))
        part = slice(groups), slice(side), slice(-(-side // self._reals))
        return self._sample(part, np.arange(side), self.rows.unit)

    @property
    def sees_all(self) -> bool:
        """Whether ``rows`` is the whole pair."""
        return self.rows.ref.shape == (self.groups, self.tokens, self.channels)

    @property
    def sees_all_channels(self) -> bool:
        """Whether ``rows`` holds whole rows, which every test of layout needs."""
        return int(self.rows.ref.shape[2]) == self.channels

    @property
    def sees_all_groups(self) -> bool:
        """Whether ``rows`` holds a part of every group."""
        return len(self.rows.ref) == self.groups

    def of_tokens(self) -> str:
        """The number of tokens for a sentence, and how many of them were sampled."""
        looked = len(self.across.tokens)
        return f"{self.tokens}" if looked == self.tokens else f"the {looked} of {self.tokens} looked at"

    def rows_of(self, other: Array) -> Floats | None:
        """The values of another tensor at ``rows``; None if it has another size or is not finite."""
        shape = self.groups, self.tokens, self.channels
        laid = _in_three_axes(other, shape) if other.size == math.prod(shape) and other.dtype.kind != "c" else None
        if laid is None:
            return None
        groups, tokens, channels = self.rows.ref.shape
        part = laid[:groups, :tokens, :channels].astype(np.float64) / self.rows.unit
        return part if np.isfinite(part).all() else None

    def noise(self, sample: Sample) -> float:
        """The RMS that rounding alone may leave, well within the floor."""
        return self.noise_share * max(rms(sample.ref), rms(sample.cand))

    @property
    def noise_share(self) -> float:
        """The same relative to the RMS of a side; it includes the incoming error, which may have grown a little."""
        return max(self.floor / 3, 1.5 * self.context.carried)

    @property
    def has_error(self) -> bool:
        """Whether the samples differ at all."""
        return bool(self.rows.error.any() or self.across.error.any())

    @property
    def exceeds_float64(self) -> bool:
        """Whether these are integers whose differences float64 cannot hold."""
        is_long = any(dtype.kind in "iu" and dtype.itemsize == 8 for dtype in self.dtypes)
        return is_long and self.rows.unit >= _EXACT_INTEGERS

    def explains(self, rest: Floats, sample: Sample, left: float = UNEXPLAINED) -> bool:
        """Whether hardly anything of a sample's error is left, on nearly all tokens and channels.

        The rest must also be small compared with both sides, or anything would explain an error that is next to
        nothing; and a single large channel must not decide.
        """
        allowed = max(left * sample.least, min(UNEXPLAINED_NOISE * sample.least, self.noise(sample)))
        if not 0 < sample.least < math.inf or not rms(rest) <= allowed:
            return False
        return all(self._explains_most(rest, sample.error, sample.ref, axes) for axes in ((0, 1), (0, 2)))

    def _explains_most(self, rest: Floats, error: Floats, ref: Floats, axes: tuple[int, int]) -> bool:
        """Whether less than half of the error is left in nine of ten places where it is more than noise."""
        left, whole = rms_along(rest, axes), rms_along(error, axes)
        places = whole > max(1e-3 * float(whole.max()), self.floor * float(np.median(rms_along(ref, axes))))
        return bool(places.any()) and float(np.mean(left[places] <= 0.5 * whole[places])) >= 0.9


def _as_three_axes(array: Array) -> Array:
    tail = array.shape[-2:] if array.ndim >= 2 else (1, array.size)
    return array.reshape(math.prod(array.shape[:-2]), *tail)


def _as_reals(part: Array) -> Array:
    """Complex numbers as pairs of reals; real numbers get an imaginary part of zero."""
    return np.ascontiguousarray(part, np.complex128).view(np.float64)


def _in_three_axes(array: Array, shape: tuple[int, int, int]) -> Array | None:
    """A tensor reshaped to three axes; None if that would copy a large one."""
    if array.flags.c_contiguous or array.size <= SAMPLE_SIZE:
        return array.reshape(shape)
    three = _as_three_axes(array) if array.ndim <= 3 else None
    return three if three is not None and three.shape == shape else None


def evenly_spaced(count: int, most: int) -> Indices:
    """At most ``most`` evenly spaced positions of an axis, including the first and the last."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, most).astype(np.int64))


def listed(places: Sequence[int] | Indices, most: int = 6) -> str:
    """The first few positions, for a sentence."""
    shown = ", ".join(str(int(place)) for place in places[:most])
    return f"{shown}, …" if len(places) > most else shown
