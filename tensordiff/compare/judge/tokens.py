"""The error of each token by itself.

The error of a tensor is that of its largest tokens. A norm makes all tokens equally large, so what came into it may be
worse than its error says; and a single wrong token may have been sent to another expert.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensordiff.align.match import Pair
from tensordiff.compare.row import values_of
from tensordiff.dump.dtypes import Array, is_float

_MOST = 1 << 20  # elements read


def token_errors(pair: Pair) -> NDArray[np.float64] | None:
    """The relative error of each token, or of some spread over all; None where the tensor has no tokens."""
    sides = values_of(pair)
    if sides is None or sides[0].ndim < 2 or not all(is_float(side.dtype) for side in sides):
        return None
    return errors_of_tokens(*sides)


def errors_of_tokens(ref: Array, cand: Array) -> NDArray[np.float64]:
    """The relative error of each row of two tensors, or of some spread over all."""
    ref, cand = (side.reshape(-1, side.shape[-1]) for side in (ref, cand))
    step = max(1, ref.size // _MOST)
    is_complex = any(side.dtype.kind == "c" for side in (ref, cand))
    wide, other = (side[::step].astype(np.complex128 if is_complex else np.float64) for side in (ref, cand))
    with np.errstate(all="ignore"):
        sizes = np.linalg.norm(wide, axis=1)
        errors = np.linalg.norm(other - wide, axis=1)
        return np.asarray(errors[sizes > 0] / sizes[sizes > 0])


def even_error(pair: Pair) -> float:
    """The error of a tensor if all its tokens were equally large."""
    errors = token_errors(pair)
    return 0.0 if errors is None or not errors.size else float(np.sqrt(np.square(errors).mean()))
