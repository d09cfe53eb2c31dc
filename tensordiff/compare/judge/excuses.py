"""What may excuse a pair that stands out, or tell where in a module the fault lies.

- ``between_parts``: a module whose parts are right is wrong between them.
- ``token_errors``: the error of a tensor is that of its largest tokens. A norm makes all tokens equally large, so what
  came into it may be worse than its error says; and a single wrong token may have been sent to another expert.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensordiff.align.match import Pair
from tensordiff.compare.judge.upstream_error import UpstreamError
from tensordiff.compare.row import Row, values_of
from tensordiff.dump.dtypes import Array, is_float
from tensordiff.errors import printable


def between_parts(row: Row, upstream: UpstreamError, *, knows_inputs: bool = False) -> str:
    """What to add to the reason of a row that diverges, about where the fault lies; empty where nothing is known."""
    parts = [part for part in upstream.parts_of(row.pair) if part.verdict.name != "unknown"]
    if any(not part.is_input for part in parts):
        return _of_parts(row, parts)
    if knows_inputs or upstream.has_inputs(row.pair) or not upstream.latest_outputs:
        return ""
    before = upstream.latest_outputs[-1].pair.reference.layer
    return f"; its inputs were not dumped, so the fault may lie between {printable(before)} and it"


def _of_parts(row: Row, parts: list[Row]) -> str:
    """A part that diverges explains its module; where none does, the fault is between the parts."""
    if any(part.verdict.name == "diverges" and not part.is_input for part in parts):
        return ""
    first = first_wrong_input(parts)
    where = f", first seen in what {_short(first, row)} was given" if first else ""
    return (
        f"; its parts are right by themselves, so what it does between them is wrong (residual, scale, reshape){where}"
    )


def first_wrong_input(parts: list[Row]) -> Row | None:
    """The first wrong input among the rows of a module's parts."""
    return next((part for part in parts if part.is_input and part.verdict.name == "diverges"), None)


def _short(part: Row, row: Row) -> str:
    return printable(part.pair.reference.layer.removeprefix(f"{row.pair.reference.layer}."))


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
