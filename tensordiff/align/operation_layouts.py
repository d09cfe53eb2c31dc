"""Operations whose tensors have another layout on the other side: heads before tokens, or heads not yet split.

Within attention, one engine computes on ``[tokens, heads, channels]`` and another on ``[heads, tokens, channels]``.
Such layouts are proven by values: a view of the reference that gives the candidate's numbers. What is proven for two
shapes is used for the other operations of these shapes, too, since behind the first error no values can prove it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tensordiff.align.by_value import layouts, rel_l2
from tensordiff.align.index import viewed
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Entry
from tensordiff.errors import AlignError, DumpError

_LARGEST_DISTANCE = 0.05
"""The rel_l2 up to which values prove a layout; a wrong one is off by about 1."""
_FEWEST_ELEMENTS, _MOST_ELEMENTS = 16, 1 << 24  # elements of a tensor that is tried

Shape = tuple[int, ...]
ValueStats = tuple[float, float]
"""Mean and RMS of a tensor."""


class Layouts:
    """The layouts that values have proven, by the shapes of both sides."""

    def __init__(self) -> None:
        self._proven: dict[tuple[Shape, Shape], str] = {}
        self._tried: dict[tuple[int, int], str | None] = {}
        self._same: dict[tuple[int, int], bool] = {}
        self._stats: dict[int, ValueStats] = {}

    def view(self, reference: Entry, candidate: Entry) -> str | None:
        """The view of the reference that gives the candidate's values; None if there is none, or none is needed."""
        key = id(reference), id(candidate)
        if key not in self._tried:
            self._tried[key] = view = self._proven_view(reference, candidate)
            if view is not None:
                self._proven.setdefault((reference.spec.shape, candidate.spec.shape), view)
        return self._tried[key]

    def is_same(self, reference: Entry, candidate: Entry) -> bool:
        """Whether two tensors hold the same values, in any layout; for huge tensors only mean and RMS are compared."""
        key = id(reference), id(candidate)
        if key not in self._same:
            try:
                self._same[key] = self._holds_same(reference, candidate)
            except (DumpError, AlignError, ValueError, TypeError):
                self._same[key] = False  # what cannot be read proves nothing; measuring reports it
        return self._same[key]

    def _holds_same(self, reference: Entry, candidate: Entry) -> bool:
        ours, theirs = reference.spec, candidate.spec
        if ours.size != theirs.size or not ours.size:
            return False
        if not have_similar_stats(self._stats_of(reference), self._stats_of(candidate)):
            return False
        if ours.size > _MOST_ELEMENTS:
            return True
        has_same_order = _without_ones(ours.shape) == _without_ones(theirs.shape)
        if has_same_order and _distance(reference, "", candidate.read()) <= _LARGEST_DISTANCE:
            return True
        return self.view(reference, candidate) is not None

    def in_layout(self, reference: Entry, candidate: Entry) -> Entry:
        """The reference in the candidate's layout, if that differs and is known."""
        try:
            shapes = reference.spec.shape, candidate.spec.shape
            view = self.view(reference, candidate)
        except DumpError:
            return reference  # measuring reports it
        if view is None and shapes[0] != shapes[1] and not self.is_same(reference, candidate):
            view = self._view_proven_for_shapes(reference, candidate)
        return reference if view is None else viewed(reference, view)

    def _view_proven_for_shapes(self, reference: Entry, candidate: Entry) -> str | None:
        """The view proven for such shapes.

        With as many heads as tokens either order is possible, and the closer one is taken.
        """
        shapes = reference.spec.shape, candidate.spec.shape
        view = self._proven.get(shapes)
        if view is None or _without_ones(shapes[0]) != _without_ones(shapes[1]):
            return view
        try:
            cand = candidate.read()
            return view if _distance(reference, view, cand) < _distance(reference, "", cand) else None
        except (DumpError, AlignError, ValueError, TypeError):
            return view  # measuring reports it

    def _proven_view(self, reference: Entry, candidate: Entry) -> str | None:
        ours, theirs = reference.spec, candidate.spec
        if ours.size != theirs.size or not _FEWEST_ELEMENTS <= ours.size <= _MOST_ELEMENTS:
            return None
        if not _may_be_transposed(ours.shape, theirs.shape):
            return None
        try:
            if not have_similar_stats(self._stats_of(reference), self._stats_of(candidate)):
                return None
            cand = candidate.read()
            if ours.shape == theirs.shape and _distance(reference, "", cand) <= _LARGEST_DISTANCE:
                return None
            views = (*_transposes(ours.shape, theirs.shape), *_head_splits(ours.shape, theirs.shape))
            return next((view for view in views if _distance(reference, view, cand) <= _LARGEST_DISTANCE), None)
        except (DumpError, AlignError, ValueError, TypeError):
            return None  # what cannot be read proves nothing; measuring reports it

    def _stats_of(self, entry: Entry) -> ValueStats:
        """Mean and RMS, which no transpose changes."""
        if (stats := self._stats.get(id(entry))) is None:
            values = entry.read().reshape(-1).astype(np.float64)
            stats = float(values.mean()), float(np.sqrt(np.dot(values, values) / values.size))
            self._stats[id(entry)] = stats
        return stats


def _may_be_transposed(ours: Shape, theirs: Shape) -> bool:
    """Whether one shape may be the other with its dimensions permuted, or with its heads split."""
    a, b = _without_ones(ours), _without_ones(theirs)
    if sorted(a) == sorted(b):
        return 2 <= len(a) <= 4 and (a != b or len(set(a)) < len(a))
    return {len(a), len(b)} == {2, 3}


def _without_ones(shape: Shape) -> list[int]:
    return [size for size in shape if size != 1]


def _transposes(ours: Shape, theirs: Shape) -> Iterator[str]:
    yield from (view for view in layouts(ours, theirs) if view.startswith("permute"))


def _head_splits(ours: Shape, theirs: Shape) -> Iterator[str]:
    """``[tokens, width]`` against ``[heads, tokens, channels]``, either way."""
    a, b = _without_ones(ours), _without_ones(theirs)
    if len(a) == 2 and len(b) == 3 and b[1] == a[0] and b[0] * b[2] == a[1]:
        yield f"reshape {b[1]} {b[0]} {b[2]} | transpose 0 1"
    if len(a) == 3 and len(b) == 2 and a[1] == b[0] and a[0] * a[2] == b[1]:
        yield f"reshape {a[0]} {a[1]} {a[2]} | transpose 0 1 | flatten 1 2"


def _distance(reference: Entry, view: str, cand: Array) -> float:
    ref = (viewed(reference, view) if view else reference).read()
    return rel_l2(ref, cand) if ref.size == cand.size else math.inf


def have_similar_stats(ours: ValueStats, theirs: ValueStats) -> bool:
    """Whether two tensors could hold the same values, by mean and RMS."""
    (mean_a, rms_a), (mean_b, rms_b) = ours, theirs
    size = max(rms_a, rms_b)
    return (
        size > 0 and abs(rms_a - rms_b) <= _LARGEST_DISTANCE * size and abs(mean_a - mean_b) <= _LARGEST_DISTANCE * size
    )
