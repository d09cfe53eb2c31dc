"""Views that follow from shapes alone: the same numbers arranged in other dimensions.

Only what cannot be wrong is done without being asked: dropping dimensions of size 1, and merging batch and sequence
into one. Every view that is applied has a name, so that it can be shown. Any other difference in shape needs a rule or
the user.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tensordiff.dump.dtypes import Array

Shape = tuple[int, ...]


class Views(NamedTuple):
    """The views applied to each side, and the shape that both have then.

    Each view counts the dimensions that the previous one left: ``squeeze 0 2``, ``flatten 0 1``.
    """

    shape: Shape
    reference: tuple[str, ...] = ()
    candidate: tuple[str, ...] = ()

    def named(self) -> list[str]:
        """For reports: the reference's views as they are, the candidate's marked."""
        _, reference, candidate = self
        return [*reference, *(f"candidate {view}" for view in candidate)] if reference or candidate else []

    def apply(self, array: Array) -> Array:
        """One side's tensor in the common shape, without a copy if numpy can."""
        if array.shape == self.shape:
            return array
        if array.size != math.prod(self.shape):
            return np.broadcast_to(array, self.shape)
        return array.reshape(self.shape)


@lru_cache(maxsize=1024)
def no_views(shape: Shape) -> Views:
    """The record for pairs that already have this shape, shared by all of them."""
    return Views(shape)


def reconcile(reference: Shape, candidate: Shape) -> Views | None:
    """The views under which two shapes are the same, or None."""
    if reference == candidate:
        return Views(reference)
    if _core(reference) == _core(candidate):
        return _squeeze_both(reference, candidate)
    return _merge_batch(reference, candidate)


def broadcast(reference: Shape, candidate: Shape) -> Views | None:
    """The views if one side has a single row for all rows of a batch, and nothing else differs; or None.

    This is only for comparing: a table made for one row cannot be distinguished from one that all rows share, and the
    single row cannot be derived from the whole. Along other axes, one for many means something else, as for the last
    token's logits.
    """
    if len(reference) != len(candidate) or len(reference) < 2 or reference[1:] != candidate[1:]:
        return None
    if 1 not in (reference[0], candidate[0]) or 0 in (reference[0], candidate[0]):
        return None  # an empty batch shares no row
    whole = (max(reference[0], candidate[0]), *reference[1:])
    ours, theirs = (() if shape == whole else ("broadcast 0",) for shape in (reference, candidate))
    return Views(whole, ours, theirs)


def _core(shape: Shape) -> Shape:
    return tuple(n for n in shape if n != 1)


def _squeeze_both(reference: Shape, candidate: Shape) -> Views:
    """Drop size-1 dimensions: from the side with more of them, or from both if they are at different axes."""
    target = min(reference, candidate, key=len)
    axes = _spare_axes(reference, target), _spare_axes(candidate, target)
    if axes[0] is None or axes[1] is None:
        return Views(_core(reference), _squeeze_all(reference), _squeeze_all(candidate))
    return Views(target, _squeeze(axes[0]), _squeeze(axes[1]))


def _squeeze_all(shape: Shape) -> tuple[str, ...]:
    return _squeeze([axis for axis, size in enumerate(shape) if size == 1])


def _squeeze(axes: Sequence[int]) -> tuple[str, ...]:
    return (f"squeeze {' '.join(map(str, axes))}",) if axes else ()


def _spare_axes(shape: Shape, target: Shape) -> list[int] | None:
    """The size-1 dimensions to drop, from the left, to get from a shape to a target; None if none will do."""
    dropped, kept = [], 0
    for axis, size in enumerate(shape):
        surplus = len(shape) - axis > len(target) - kept
        if size == 1 and surplus and (kept == len(target) or target[kept] != 1 or _spare(shape[axis:], target[kept:])):
            dropped.append(axis)
        elif kept < len(target) and size == target[kept]:
            kept += 1
        else:
            return None
    return dropped if kept == len(target) else None


def _spare(rest: Shape, target: Shape) -> bool:
    """Whether there are more leading ones here than in the target."""
    return _leading_ones(rest) > _leading_ones(target)


def _leading_ones(shape: Shape) -> int:
    return next((k for k, size in enumerate(shape) if size != 1), len(shape))


def _merge_batch(reference: Shape, candidate: Shape) -> Views | None:
    """[B, S, …] against [B*S, …], as they are or without their size-1 dimensions."""
    if merged := _merge(reference, candidate):
        return merged
    if merged := _merge(_core(reference), _core(candidate)):
        leading = _squeeze_all(reference), _squeeze_all(candidate)
        return Views(merged.shape, leading[0] + merged.reference, leading[1] + merged.candidate)
    return None


def _merge(reference: Shape, candidate: Shape) -> Views | None:
    if _merged(reference) == candidate:
        return Views(candidate, reference=("flatten 0 1",))
    if _merged(candidate) == reference:
        return Views(reference, candidate=("flatten 0 1",))
    return None


def _merged(shape: Shape) -> Shape | None:
    return (math.prod(shape[:2]), *shape[2:]) if len(shape) >= 3 else None
