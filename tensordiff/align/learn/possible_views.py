"""The views under which one shape could be another, without numbers that hold for one prompt only.

A view that is learned in one layer is applied to the same place in others and in other steps, which have more or fewer
tokens. So heads are split by their count and axes are permuted, and nothing is reshaped to fixed sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tensordiff.align.by_value import permuted_axes, rope_orders
from tensordiff.align.views import reconcile

Shape = tuple[int, ...]


def possible_views(reference: Shape, candidate: Shape) -> Iterator[str]:
    """Views of the reference that could give the candidate's shape, most likely first; the empty text for no view."""
    if math.prod(reference) != math.prod(candidate):
        return
    seen = set[str]()
    for view in _candidates(reference, candidate):
        if view not in seen:
            seen.add(view)
            yield view


def _candidates(reference: Shape, candidate: Shape) -> Iterator[str]:
    if reconcile(reference, candidate) is not None:
        yield ""
    yield from _heads_split(reference, candidate)
    yield from _heads_joined(reference, candidate)
    yield from permuted_axes(reference, candidate)
    yield from rope_orders(reference, candidate)


def _heads_split(reference: Shape, candidate: Shape) -> Iterator[str]:
    """[B, S, n*d] against [B, S, n, d] or [B, n, S, d]."""
    if not reference:
        return
    for count in dict.fromkeys(candidate):
        if 1 < count < reference[-1] and reference[-1] % count == 0:
            split = (*reference[:-1], count, reference[-1] // count)
            if reconcile(split, candidate) is not None:
                yield f"heads {count}"
                yield f"heads {count} | interleave"
                yield f"heads {count} | deinterleave"
            if len(split) >= 3 and reconcile((*split[:-3], split[-2], split[-3], split[-1]), candidate) is not None:
                yield f"heads {count} | swap_heads"


def _heads_joined(reference: Shape, candidate: Shape) -> Iterator[str]:
    """[B, S, n, d] or [B, n, S, d] against [B, S, n*d]."""
    if len(reference) < 3:
        return
    if reconcile((*reference[:-2], reference[-2] * reference[-1]), candidate) is not None:
        yield "flatten -2 -1"
    swapped = (*reference[:-3], reference[-2], reference[-3] * reference[-1])
    if reconcile(swapped, candidate) is not None:
        yield "swap_heads | flatten -2 -1"
