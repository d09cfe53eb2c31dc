"""A closer look at one pair, on request: worst elements, error along an axis, a histogram of errors, some values.

These functions read the pair again, in chunks; the numbers that every pair gets come from ``measure``. A function that
reads the whole pair yields an intermediate result after each chunk, so that the caller can show it, or stop. Complex
numbers become pairs of reals along a last axis, as in ``measure``.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.measure.chunks import Block, Floats, error_blocks, errors, flat_chunks
from tensordiff.compare.measure.diff import REL_GUARD, unravel
from tensordiff.compare.measure.dispatch import as_reals
from tensordiff.compare.measure.numpy_pass import difference
from tensordiff.dump.dtypes import Array


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a pair."""

    index: tuple[int, ...]
    reference: float
    candidate: float
    error: float
    """candidate - reference|; NaN or infinite if one side is and the other is not the same."""

    @property
    def relative(self) -> float:
        """The relative error, defined as in ``max_rel``."""
        size = abs(self.reference)
        return self.error / max(size if math.isfinite(size) else 0.0, REL_GUARD)


class AxisErrors(NamedTuple):
    """The |error| of each slice along an axis."""

    rms: Floats
    largest: Floats


class Window(NamedTuple):
    """A small rectangle of both sides as they are stored, and their difference."""

    reference: Array
    candidate: Array
    difference: Floats
    """candidate - reference; 0 where both sides are equal and not finite."""
    relative: Floats
    """The relative error, defined as in ``max_rel``."""


def worst_elements(ref: Array, cand: Array, k: int = 10) -> list[Element]:
    """The k largest errors, largest first. NaN counts as largest; equal errors keep their order."""
    ref, cand = as_reals(ref, cand)
    largest: list[tuple[float, int, float, float, float]] = []
    for offset, r, c, error in element_errors(ref, cand):
        rank = np.where(np.isnan(error), math.inf, error)
        top = np.argsort(-rank, kind="stable")[:k]
        places = zip(top.tolist(), rank[top].tolist(), strict=True)
        largest += ((-size, offset + at, float(r[at]), float(c[at]), float(error[at])) for at, size in places)
        largest = heapq.nsmallest(k, largest, key=lambda item: item[:2])
    return [Element(unravel(at, ref.shape), r, c, error) for _, at, r, c, error in largest if error != 0]


def worst_in(ref: Array, cand: Array, block: Block) -> tuple[int, ...]:
    """The index of the largest error in a rectangle, or of its first element if there is no error."""
    largest = worst_elements(ref[block], cand[block], 1)
    within = largest[0].index if largest else (0,) * ref.ndim
    return tuple(part.start + at for part, at in zip(block, within, strict=True))


def errors_along(ref: Array, cand: Array, axis: int) -> Iterator[AxisErrors]:
    """The error of each slice along an axis, over the blocks read so far."""
    axis %= ref.ndim
    length = ref.shape[axis]
    squares, largest = np.zeros(length), np.zeros(length)
    others = tuple(other for other in range(ref.ndim) if other != axis)
    each = max(1, ref.size // max(1, length))
    yield AxisErrors(squares, largest)
    for block, _, error in error_blocks(ref, cand):
        with np.errstate(all="ignore"):
            squares[block[axis]] += np.square(error).sum(others)
            largest[block[axis]] = np.maximum(largest[block[axis]], error.max(others))
            yield AxisErrors(np.sqrt(squares / each), largest.copy())


def window(
    ref: Array, cand: Array, index: tuple[int, ...], down: int, across: int | None, rows: slice, columns: slice
) -> Window:
    """The values around a place: ``rows`` along the axis ``down``, ``columns`` along the axis ``across``."""
    ranges = {down: rows} if across is None else {down: rows, across: columns}
    part = tuple(ranges.get(axis, slice(at, at + 1)) for axis, at in enumerate(index))
    r, c = (_flat_window(side[part], down, across) for side in (ref, cand))
    wide, _, error = errors(r, c)
    with np.errstate(all="ignore"):
        signed = np.where(error == 0, 0.0, difference(r, c))
        size = np.where(np.isfinite(wide), np.abs(wide), 0.0)
        return Window(r, c, signed, error / np.maximum(size, REL_GUARD))


def _flat_window(part: Array, down: int, across: int | None) -> Array:
    """A rectangle as a two-dimensional copy, since it may outlive the file mapping."""
    rows = part.shape[down]
    turned = across is not None and across < down
    return np.array(part.reshape(-1, rows).T if turned else part.reshape(rows, -1))


def element_errors(ref: Array, cand: Array) -> Iterator[tuple[int, Floats, Floats, Floats]]:
    """Flat chunks of the pair with their |error|; equal non-finite values have none."""
    for offset, r, c in flat_chunks(ref, cand):
        yield offset, *errors(r, c)


# --- histogram ------------------------------------------------------------------------------------

PER_DECADE = 10
"""Bins per decade while counting; ``Histogram.merged`` makes them fewer."""
_LOWEST, _HIGHEST = -324 * PER_DECADE, 308 * PER_DECADE + 2  # the range of float64


def _edge(k: int, per_decade: int) -> float:
    """Where bin k begins; powers of ten are exact."""
    decade, within = divmod(k, per_decade)
    return float(f"1e{decade}") if not within else 10.0 ** (k / per_decade)


_EDGES = np.array([*(_edge(k, PER_DECADE) for k in range(_LOWEST, _HIGHEST + 1)), math.inf])


class Histogram(NamedTuple):
    """The number of errors in each bin. ``zero`` counts equal elements; ``nan`` and ``inf`` those on one side only."""

    first: int
    """The number of the first bin; bin k begins at 10^(k / per_decade)."""
    counts: tuple[int, ...]
    zero: int
    nan: int
    inf: int
    per_decade: int = PER_DECADE

    def merged(self, per_decade: int) -> Histogram:
        """The same with fewer bins; ``per_decade`` must divide the current number."""
        factor = self.per_decade // per_decade
        sums: dict[int, int] = {}
        for k, count in enumerate(self.counts, self.first):
            sums[k // factor] = sums.get(k // factor, 0) + count
        return self._replace(first=self.first // factor, counts=tuple(sums.values()), per_decade=per_decade)

    def edge(self, k: int) -> float:
        """Where bin k begins."""
        return _edge(k, self.per_decade)


def histogram(ref: Array, cand: Array) -> Iterator[Histogram]:
    """Errors counted by magnitude, over the blocks read so far."""
    counts = np.zeros(_HIGHEST - _LOWEST + 1, np.int64)
    zero = nan = inf = 0
    yield Histogram(0, (), 0, 0, 0)
    for _, _, error in error_blocks(ref, cand):
        positive = error[np.isfinite(error) & (error > 0)]
        nan += int(np.count_nonzero(np.isnan(error)))
        inf += int(np.count_nonzero(np.isinf(error)))
        zero += int(np.count_nonzero(error == 0))
        counts += np.bincount(_bins(positive), minlength=len(counts))
        yield _histogram(counts, zero, nan, inf)


def _histogram(counts: NDArray[np.int64], zero: int, nan: int, inf: int) -> Histogram:
    seen = np.flatnonzero(counts)
    if not seen.size:
        return Histogram(0, (), zero, nan, inf)
    first, last = int(seen[0]), int(seen[-1])
    return Histogram(_LOWEST + first, tuple(counts[first : last + 1].tolist()), zero, nan, inf)


def _bins(positive: Floats) -> NDArray[np.int64]:
    """The bin of each error. The logarithm may be off by one bin at an edge, so the edges themselves decide."""
    bins: NDArray[np.int64] = np.floor(np.log10(positive) * PER_DECADE).astype(np.int64) - _LOWEST
    bins += positive >= _EDGES[bins + 1]
    bins -= positive < _EDGES[bins]
    return bins
