"""Where in a module the fault lies: in one of its parts, or in what it does between them.

Errors token by token, for the few pairs in which the whole misleads.

A tensor's error is that of its largest tokens. A norm makes all tokens equally large, so what came into it may be
worse than its error says; and where one token alone is wrong, the reason may be that it was sent to another expert.

Masks that say the same in other numbers: 0 where a token is seen, and anything far below it where it is not.

A float16 run cannot hold the -3.4e38 that a float32 run masks with, and some write minus infinity. A difference of
such numbers is no error, and nothing that a layer was given of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensordiff.align.match import Pair
from tensordiff.compare.judge.upstream_error import UpstreamError
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.row import Row, values_of
from tensordiff.dump.dtypes import Array, is_float
from tensordiff.errors import printable


def between_parts(row: Row, past: UpstreamError, *, knows_inputs: bool = False) -> str:
    """What is to be added to the reason of a row that diverges, as to where; empty where nothing is known."""
    parts = [part for part in past.parts_of(row.pair) if part.verdict.name != "unknown"]
    if any(not part.is_input for part in parts):
        return _of_parts(row, parts)
    if knows_inputs or past.has_inputs(row.pair) or not past.latest:
        return ""
    before = past.latest[-1].pair.reference.layer
    return f"; its inputs were not dumped, so the fault may lie between {printable(before)} and it"


def _of_parts(row: Row, parts: list[Row]) -> str:
    """Parts that diverge by themselves explain a module; where none does, what stands between them is wrong."""
    if any(part.verdict.name == "diverges" and not part.is_input for part in parts):
        return ""
    first = first_wrong_input(parts)
    where = f", first seen in what {_short(first, row)} was given" if first else ""
    return (
        f"; its parts are right by themselves, so what it does between them is wrong (residual, scale, reshape){where}"
    )


def first_wrong_input(parts: list[Row]) -> Row | None:
    """The first of a module's parts that was given something wrong."""
    return next((part for part in parts if part.is_input and part.verdict.name == "diverges"), None)


def _short(part: Row, row: Row) -> str:
    return printable(part.pair.reference.layer.removeprefix(f"{row.pair.reference.layer}."))


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
