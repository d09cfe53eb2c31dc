"""Errors token by token, for the few pairs in which the whole misleads.

A tensor's error is that of its largest tokens. A norm makes all tokens equally large, so what came into it may be
worse than its error says; and where one token alone is wrong, the reason may be that it was sent to another expert.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensordiff.align.match import Pair
from tensordiff.compare.opening import values_of
from tensordiff.dump.dtypes import is_float

_MOST = 1 << 20  # elements looked at


def token_errors(pair: Pair) -> NDArray[np.float64] | None:
    """The relative error of each token, or of some spread over all; None where there are none."""
    sides = values_of(pair)
    if sides is None or sides[0].ndim < 2 or not all(is_float(side.dtype) for side in sides):
        return None
    ref, cand = (side.reshape(-1, side.shape[-1]) for side in sides)
    step = max(1, ref.size // _MOST)
    wide, other = ref[::step].astype(np.float64), cand[::step].astype(np.float64)
    with np.errstate(all="ignore"):
        sizes = np.linalg.norm(wide, axis=1)
        errors = np.linalg.norm(other - wide, axis=1)
    return np.asarray(errors[sizes > 0] / sizes[sizes > 0])


def even_error(pair: Pair) -> float:
    """The error of a tensor were all its tokens equally large."""
    errors = token_errors(pair)
    return 0.0 if errors is None or not errors.size else float(np.sqrt(np.square(errors).mean()))
