"""The numbers of a pair (``Diff``), and the row of cells that one pass over it accumulates (``Sums``).

Both passes (``compiled_pass`` and ``numpy_pass``) fill the same cells; only ``metrics`` turns them into a ``Diff``. The
order of the cells is also that of an enum in ``kernel/pass.c``.

A NaN or infinity in the same place on both sides agrees and adds nothing. A non-finite value that stands apart makes
every distance NaN (or inf), and the first such place is reported as that of the maximum. Norms of the reference cover
its finite elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BUCKETS = 32
"""Buckets of the profile, which are equal stretches of the flattened tensor."""
REL_GUARD = 1e-10
"""max_rel is |cand - ref| / max(|ref|, REL_GUARD), as the MAX tools define it."""

# A pass fills one flat row of float64 per pair, so that many small pairs need one allocation. First come the two peaks
# (the largest error and the largest relative error of finite elements) and their flat positions,
PEAKS, WHERE = 0, 2
# then counts and first positions of non-finite values ("apart": on one side only, or different on both),
NAN_REF, NAN_CAND, INF_REF, INF_CAND, NAN_APART, INF_APART, FIRST_NAN, FIRST_INF = range(4, 12)
# then sums of |d|, d², r², r·d, the number of elements outside the tolerance, and d² for each bucket.
TOTALS, SQUARES = 12, 17
SUM_ABS, SUM_DD, SUM_RR, SUM_RD, OUTSIDE = range(5)

Index = tuple[int, ...]
Cells = NDArray[np.float64]


class Sums(NamedTuple):
    """The sums of one pass over a pair. ``d`` is cand - ref, ``r`` is ref."""

    elements: int
    cells: Cells

    @staticmethod
    def empty(elements: int) -> Sums:
        """Empty sums."""
        return Sums(elements, empty_cells([elements])[0])

    @property
    def squares(self) -> Cells:
        """The sum of d² of each bucket."""
        return self.cells[SQUARES : SQUARES + min(BUCKETS, self.elements)]


def empty_cells(elements: Sequence[int]) -> Cells:
    """A row of empty cells for each pair of these sizes."""
    cells = np.zeros((len(elements), SQUARES + BUCKETS))
    cells[:, FIRST_NAN:TOTALS] = np.array(elements, dtype=np.float64).reshape(-1, 1)
    return cells


class Products(NamedTuple):
    """Inner products of a pair: ``d`` is cand - ref, ``r`` ref, ``c`` cand."""

    dd: float
    rr: float
    rd: float
    cc: float
    rc: float


class WideDiff(NamedTuple):
    """The numbers of a pair as ``wide_range`` sums them, without non-finite places."""

    max_abs: float
    max_abs_at: int
    max_rel: float
    max_rel_at: int
    outside: int
    mean_abs: float
    rms: float
    ref_rms: float
    rel_l2: float
    cosine_distance: float
    scale: float
    bucket_rms: NDArray[np.float64]

    @property
    def mse(self) -> float:
        """The square of ``rms``; infinite if float64 cannot hold it."""
        return self.rms * self.rms


_JSON_FIELDS = (
    "max_abs", "max_abs_index", "max_rel", "max_rel_index", "mean_abs", "mse", "rms", "rel_l2", "cosine_distance",
    "outside", "elements", "nan", "inf", "apart", "ref_rms", "scale",
)  # fmt: skip


class Diff(NamedTuple):
    """The numbers of one pair."""

    max_abs: float
    max_abs_at: int
    """Flat position in ``shape``; ``max_abs_place`` has it by axis."""
    max_rel: float
    max_rel_at: int
    mean_abs: float
    mse: float
    rms: float
    rel_l2: float
    cosine_distance: float
    outside: int
    elements: int
    nan: tuple[int, int]
    inf: tuple[int, int]
    apart: int
    """Places where one side is NaN or infinite and the other side is not the same."""
    ref_rms: float
    scale: float
    """The factor that best fits cand = factor * ref."""
    bucket_rms: NDArray[np.floating[Any]]
    """RMS error of each bucket of the flattened tensor; in float32 if that can hold it."""
    shape: tuple[int, ...]
    """Shape of the real numbers compared; complex tensors have a last axis of real and imaginary parts."""
    is_complex: bool = False

    @property
    def profile(self) -> tuple[float, ...]:
        """Relative error of each bucket: its RMS error divided by the RMS of the whole reference."""
        if 0 < self.ref_rms < math.inf:
            with np.errstate(over="ignore"):
                return tuple((self.bucket_rms.astype(np.float64) / self.ref_rms).tolist())
        return tuple(math.inf if error else 0.0 for error in self.bucket_rms.tolist())

    @property
    def max_abs_index(self) -> Index | None:
        """The index of the element with the largest error, complex or real; None for an empty tensor."""
        return self._element(self.max_abs_at)

    @property
    def max_rel_index(self) -> Index | None:
        """The index of the element with the largest relative error, complex or real; None for an empty tensor."""
        return self._element(self.max_rel_at)

    @property
    def max_abs_place(self) -> Index | None:
        """The position of the largest error in ``shape``; None for an empty tensor."""
        return unravel(self.max_abs_at, self.shape) if self.elements else None

    def _element(self, flat: int) -> Index | None:
        if not self.elements:
            return None
        return unravel(flat // 2, self.shape[:-1]) if self.is_complex else unravel(flat, self.shape)

    def as_json(self) -> dict[str, Any]:
        """The ``diff`` object of ``compare --json``; NaN and infinity are still floats here."""
        named = {name: getattr(self, name) for name in _JSON_FIELDS}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in named.items()}


def unravel(flat: int, shape: tuple[int, ...]) -> Index:
    """Convert a flat position to an index by axis."""
    index = []
    for size in reversed(shape):
        flat, place = divmod(flat, size)
        index.append(place)
    return tuple(reversed(index))


@lru_cache(maxsize=1024)
def edges(elements: int) -> NDArray[np.int64]:
    """Where each bucket of the profile begins, and where the last one ends."""
    buckets = min(BUCKETS, elements)
    return np.arange(buckets + 1) * elements // max(buckets, 1)


@lru_cache(maxsize=1024)
def lengths(elements: int) -> NDArray[np.float64]:
    """The number of elements in each bucket; 1 for buckets that a small tensor does not have."""
    held = np.ones(BUCKETS)
    held[: min(BUCKETS, elements)] = np.diff(edges(elements))
    return held


def cuts_within(edges: NDArray[np.int64], start: int, length: int) -> tuple[NDArray[np.int64], int]:
    """Where buckets (or cells) begin inside a stretch, relative to its start, and the number of the first one."""
    first = int(np.searchsorted(edges, start, side="right")) - 1
    last = int(np.searchsorted(edges, start + length, side="left"))
    return np.maximum(edges[first:last] - start, 0), first
