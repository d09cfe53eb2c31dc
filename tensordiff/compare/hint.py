"""What kind of error a pair shows, from the error's shape, with the evidence for it.

The tests of the kinds are in ``kinds``; here is only the order in which they are asked: what is exact before
what is likely, the narrow before the wide. A test passes by a margin or not at all, and "no idea" (None) is
an answer. It is asked of the culprit, or of what a person points at; never of every pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tensordiff.compare.kinds import fits, layouts, places, rounding
from tensordiff.compare.kinds.odd import odd
from tensordiff.compare.kinds.seen import Hint as Hint
from tensordiff.compare.kinds.seen import Seen
from tensordiff.dump.dtypes import Array

_EXACT_INTEGERS = 2.0**53
_BEFORE_CONTEXT: tuple[Callable[[Seen], Hint | None], ...] = (fits.zero, fits.constant, fits.scale, fits.bias)
_AFTER_CONTEXT: tuple[Callable[[Seen], Hint | None], ...] = (
    layouts.transposed,
    layouts.shifted,
    layouts.rope_order,
    layouts.blocks,
    layouts.slices,
    layouts.heads_in_memory,
    layouts.token_rows,
    fits.bias_per_channel,
    rounding.rounded,
    rounding.last_bits,
    places.tokens,
    places.channels,
    places.groups,
    fits.scale_per_token,
    fits.scale_per_channel,
    places.position,
    places.all_but_one,
)


def hint(ref: Array, cand: Array, context: Mapping[str, Array] | None = None) -> Hint | None:
    """What kind of error two tensors of one shape show; None if no kind stands clear.

    ``context`` are tensors, by name, that the candidate may have lost or added twice: the layer's inputs.
    """
    if ref.shape != cand.shape:
        raise ValueError(f"shapes differ: {ref.shape} and {cand.shape}; reconcile them first")
    if not ref.size:
        return None
    with np.errstate(all="ignore"):
        return _asked(Seen.of(ref, cand), context or {})


def _asked(seen: Seen, context: Mapping[str, Array]) -> Hint | None:
    if found := odd(seen):
        return found
    looks = seen.rows, seen.across
    if not any(look.error.any() for look in looks) or _is_beyond_floats(seen):
        return None
    first = (test(seen) for test in _BEFORE_CONTEXT)
    then = (test(seen) for test in _AFTER_CONTEXT)
    return next(filter(None, first), None) or fits.residual(seen, context) or next(filter(None, then), None)


def _is_beyond_floats(seen: Seen) -> bool:
    """Whether these are integers whose differences float64 cannot tell."""
    is_wide = any(dtype.kind in "iu" and dtype.itemsize == 8 for dtype in seen.dtypes)
    return is_wide and seen.rows.unit >= _EXACT_INTEGERS
