"""Masks that say the same in other numbers: 0 where a token is seen, and anything far below it where it is not.

A float16 run cannot hold the -3.4e38 that a float32 run masks with, and some write minus infinity. A difference of
such numbers is no error, and nothing that a layer was given of it.
"""

from __future__ import annotations

import numpy as np

from tensordiff.align.match import Pair
from tensordiff.compare.opening import values_of
from tensordiff.compare.sums import Diff
from tensordiff.dump.dtypes import Array, is_float

_HIDDEN = -1e4


def is_same_mask(pair: Pair, diff: Diff) -> bool:
    """Whether both sides of a pair are masks, and hide the same. Reads them only if their numbers leave room for it."""
    sides = values_of(pair) if _may_be_mask(pair) and (diff.apart or diff.max_abs >= -_HIDDEN / 2) else None
    if sides is None or not all(is_float(side.dtype) for side in sides):
        return False
    ref, cand = sides
    return bool(_is_mask(ref) and _is_mask(cand) and ((ref == 0) == (cand == 0)).all())


def _may_be_mask(pair: Pair) -> bool:
    return pair.reference.is_input or "mask" in pair.reference.name


def _is_mask(side: Array) -> bool:
    """Whether every element is 0, and shown, or hidden; and some are hidden."""
    with np.errstate(all="ignore"):
        hidden = side.astype(np.float64) <= _HIDDEN
    return bool(((side == 0) | hidden).all() and hidden.any())
