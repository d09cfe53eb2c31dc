"""What is looked at of a pair to tell what kind of error it shows, and when a kind explains the error.

A tensor is seen as [groups, tokens, channels]: its last axis are channels, the one before tokens, all
before them groups. Only so much is looked at that a hint costs little, whatever the shape: of a large tensor the
first rows (whole, for what depends on their layout; of a row that is too long for that its beginning) and tokens
spread over all of it (with some of their channels, for what depends on the place). Complex numbers are made pairs of
reals only in what is looked at. No other module here touches the tensors themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.judge.verdict import floor_for
from tensordiff.dump.dtypes import Array, DType, name_of

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Places = NDArray[np.int64]
_Part = tuple[slice, slice, slice] | tuple[Places, ...]

LOOKED_AT = 1 << 18
"""Elements looked at in one way."""
TOKENS = 1024
"""Tokens told apart ..."""
SPREAD = 1 << 16
"""... by so many elements."""
LEFT = 0.02
"""The part of an error that a kind may leave unexplained."""
LEFT_OF_NOISE = 0.3
"""The same where what is left is no more than rounding."""


class Sample:
    """A part of a pair, [groups, tokens, channels]; zero where both sides are the same and not finite."""

    def __init__(self, ref: Array, cand: Array, tokens: Places, unit: float | None = None) -> None:
        wide_ref, wide_cand = ref.astype(np.float64), cand.astype(np.float64)
        odd = ~(np.isfinite(wide_ref) & np.isfinite(wide_cand))
        same = (wide_ref == wide_cand) | (np.isnan(wide_ref) & np.isnan(wide_cand))
        self.odd: tuple[Floats, Floats, Mask] | None = None
        if odd.any():
            if (apart := odd & ~same).any():
                self.odd = wide_ref, wide_cand, apart
            wide_ref, wide_cand = np.where(odd, 0.0, wide_ref), np.where(odd, 0.0, wide_cand)
        self.unit = unit or _unit(wide_ref, wide_cand)
        self.ref, self.cand, self.tokens = wide_ref / self.unit, wide_cand / self.unit, tokens

    @cached_property
    def error(self) -> Floats:
        """Candidate - reference, over the unit."""
        return self.cand - self.ref

    @cached_property
    def least(self) -> float:
        """The size of the smallest of error and sides."""
        return min(map(size, (self.error, self.ref, self.cand)))

    def part(self, tokens: slice) -> Sample:
        """Some tokens of it."""
        return Sample(self.ref[:, tokens], self.cand[:, tokens], self.tokens[tokens], 1.0)


def _unit(ref: Floats, cand: Floats) -> float:
    """A power of two near the largest value, by which all is divided so that no square overflows."""
    largest = max(float(np.abs(side).max(initial=0.0)) for side in (ref, cand))
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest else 1.0


def rms(values: Floats, axis: tuple[int, ...] | None = None) -> Floats:
    """Root of the mean square, 0 of nothing."""
    count = values.size if axis is None else math.prod(values.shape[a] for a in axis)
    return np.asarray(np.sqrt(np.square(values).sum(axis) / max(1, count)))


def size(values: Floats) -> float:
    """The RMS of all values."""
    return float(rms(values))


@dataclass(frozen=True)
class SampledPair:
    """A pair of tensors of one shape, seen as [groups, tokens, channels]."""

    shape: tuple[int, ...]
    raw: tuple[Array, Array]
    """As they lie in memory: complex numbers are not yet pairs."""
    carried: float = 0.0
    """The error (rel_l2) of what came in, which is no part of what is looked for."""

    @classmethod
    def of(cls, ref: Array, cand: Array, carried: float = 0.0) -> SampledPair:
        """Look at a pair of one shape; complex numbers are pairs of reals along the channels.

        Where the axes before the tokens cannot be made one without a copy, the first of the outermost is seen.
        """
        while ref.ndim > 3 and ref.size > LOOKED_AT and not (ref.flags.c_contiguous and cand.flags.c_contiguous):
            ref, cand = ref[0], cand[0]
        return cls(ref.shape, (_three(ref), _three(cand)), carried)

    @cached_property
    def _reals(self) -> int:
        """How many channels one number is."""
        return 2 if any(side.dtype.kind == "c" for side in self.raw) else 1

    def _look(self, part: _Part, tokens: Places, unit: float | None = None) -> Sample:
        """A part of both sides; of its last axis numbers are meant, not channels."""
        sides = (side[part] for side in self.raw)
        ref, cand = (_as_reals(side) for side in sides) if self._reals > 1 else sides
        return Sample(ref, cand, tokens, unit)

    @property
    def groups(self) -> int:
        """All axes before the tokens, in one."""
        return int(self.raw[0].shape[0])

    @property
    def tokens(self) -> int:
        """The axis before the last."""
        return int(self.raw[0].shape[1])

    @property
    def channels(self) -> int:
        """The last axis."""
        return int(self.raw[0].shape[2]) * self._reals

    @property
    def dtypes(self) -> tuple[DType, DType]:
        """Of the reference, of the candidate; of complex numbers that of their parts."""
        ref, cand = (side.dtype if side.dtype.kind != "c" else side[:0].real.dtype for side in self.raw)
        return ref, cand

    @cached_property
    def floor(self) -> float:
        """The error (rel_l2) that precision explains."""
        return floor_for(*map(name_of, self.dtypes))[1].agrees

    @property
    def quiet(self) -> float:
        """The error up to which a place is right: the floor, or what came in, where that is known and less."""
        return min(self.floor, 3 * self.carried) if self.carried else self.floor

    @cached_property
    def healthy(self) -> float:
        """The error up to which a layer may be healthy."""
        return floor_for(*map(name_of, self.dtypes))[1].diverges

    @cached_property
    def rows(self) -> Sample:
        """The first tokens of the first groups, with all their channels, or as many as may be looked at."""
        channels = max(self._reals, min(self.channels, LOOKED_AT))
        few = max(1, LOOKED_AT // (16 * channels))
        groups = min(self.groups, few)
        tokens = min(self.tokens, max(1, LOOKED_AT // (max(1, groups) * channels)))
        return self._look((slice(groups), slice(tokens), slice(channels // self._reals)), np.arange(tokens))

    @cached_property
    def across(self) -> Sample:
        """Tokens spread over the whole tensor, with some of their channels."""
        if self.sees_all:
            return self.rows
        tokens = spread(self.tokens, TOKENS)
        channels = spread(self.channels // self._reals, max(1, SPREAD // (len(tokens) * self._reals)))
        groups = spread(self.groups, max(1, SPREAD // (len(tokens) * len(channels))))
        return self._look(np.ix_(groups, tokens, channels), tokens, self.rows.unit)

    @cached_property
    def corner(self) -> Sample:
        """The first tokens and as many channels."""
        side = min(self.tokens, self.channels, math.isqrt(LOOKED_AT))
        groups = min(self.groups, max(1, LOOKED_AT // (side * side)))
        part = slice(groups), slice(side), slice(-(-side // self._reals))
        return self._look(part, np.arange(side), self.rows.unit)

    @property
    def sees_all(self) -> bool:
        """Whether ``rows`` is the whole pair."""
        return self.rows.ref.shape == (self.groups, self.tokens, self.channels)

    @property
    def sees_all_channels(self) -> bool:
        """Whether ``rows`` are whole: a layout is told by nothing less."""
        return int(self.rows.ref.shape[2]) == self.channels

    @property
    def sees_all_groups(self) -> bool:
        """Whether ``rows`` holds some of every group."""
        return len(self.rows.ref) == self.groups

    def of_tokens(self) -> str:
        """For sentences: how many tokens there are, or how many of them were looked at."""
        looked = len(self.across.tokens)
        return f"{self.tokens}" if looked == self.tokens else f"the {looked} of {self.tokens} looked at"

    def beside(self, other: Array) -> Floats | None:
        """Another tensor in the place of ``rows``; None if it is not of the same size, or not finite."""
        shape = self.groups, self.tokens, self.channels
        laid = _laid(other, shape) if other.size == math.prod(shape) and other.dtype.kind != "c" else None
        if laid is None:
            return None
        groups, tokens, channels = self.rows.ref.shape
        part = laid[:groups, :tokens, :channels].astype(np.float64) / self.rows.unit
        return part if np.isfinite(part).all() else None

    def noise(self, look: Sample) -> float:
        """What rounding alone may leave, well within the floor."""
        return self.noise_share * max(size(look.ref), size(look.cand))

    @property
    def noise_share(self) -> float:
        """The same, of a side's size; what came in is in it, and may have grown a little."""
        return max(self.floor / 3, 1.5 * self.carried)

    def explains(self, rest: Floats, look: Sample, left: float = LEFT) -> bool:
        """Whether hardly anything of a look's error is left, and on nearly all tokens and channels.

        The rest must be small against either side too: what is next to nothing explains nothing. And one large
        channel alone convinces nobody.
        """
        allowed = max(left * look.least, min(LEFT_OF_NOISE * look.least, self.noise(look)))
        if not 0 < look.least < math.inf or not size(rest) <= allowed:
            return False
        return all(self._explains_most(rest, look.error, look.ref, axes) for axes in ((0, 1), (0, 2)))

    def _explains_most(self, rest: Floats, error: Floats, ref: Floats, axes: tuple[int, int]) -> bool:
        """Whether less than half of the error is left on nine in ten of the places where there is more than noise."""
        left, whole = rms(rest, axes), rms(error, axes)
        places = whole > max(1e-3 * float(whole.max()), self.floor * float(np.median(rms(ref, axes))))
        return bool(places.any()) and float(np.mean(left[places] <= 0.5 * whole[places])) >= 0.9


def _three(array: Array) -> Array:
    tail = array.shape[-2:] if array.ndim >= 2 else (1, array.size)
    return array.reshape(math.prod(array.shape[:-2]), *tail)


def _as_reals(part: Array) -> Array:
    """Complex numbers as pairs of reals; reals with an imaginary part of nothing."""
    return np.ascontiguousarray(part, np.complex128).view(np.float64)


def _laid(array: Array, shape: tuple[int, int, int]) -> Array | None:
    """A tensor in a shape of three; None where that takes a copy of a large one."""
    if array.flags.c_contiguous or array.size <= LOOKED_AT:
        return array.reshape(shape)
    three = _three(array) if array.ndim <= 3 else None
    return three if three is not None and three.shape == shape else None


def spread(count: int, most: int) -> Places:
    """At most so many places of an axis, the first and the last among them."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, most).astype(np.int64))


def listed(places: Sequence[int] | Places, most: int = 6) -> str:
    """The first few of some places, for a sentence."""
    shown = ", ".join(str(int(place)) for place in places[:most])
    return f"{shown}, …" if len(places) > most else shown
