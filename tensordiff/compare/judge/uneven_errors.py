"""Uneven errors: errors hidden by large elements or by right tokens, and errors of only a few elements or tokens.

Large elements dominate a norm. Trained models have activations thousands of times larger than all others, and one
element of 1e9 makes 999 wrong ones beside it look like rounding. So before a pair agrees by its norm, the elements
without the largest ones must agree too. That check reads a sample of the pair again, and only if enough elements lie
outside the usual tolerance of their type and a glance at a smaller sample cannot prove that the reference is even. If
half of the elements lie outside, the smaller three quarters must not be completely wrong, however many elements are
large.

Most tokens dominate a norm as well: one completely wrong token of a thousand is 3 % of it, which bfloat16 would
explain. If one stretch of a tensor is further off than the others, its tokens are checked one by one.

Finally, an error that is excused by earlier rounding is everywhere. A single element that is far off among others that
agree to the last bits of their own type is not the rounding of a coarser type before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tensordiff.align.match import Pair
from tensordiff.compare.judge.evidence import Measurement
from tensordiff.compare.judge.verdict import (
    GROWTH,
    GROWTH_OF_FEW_BITS,
    UNITS,
    Verdict,
    floor_for,
    growth_for,
    judge_diff,
)
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.diff import Diff, edges
from tensordiff.compare.measure.dispatch import as_reals
from tensordiff.compare.row import Row, values_of
from tensordiff.dump.dtypes import Array, is_float

MANY_OUTSIDE = 0.01
"""Share of elements outside the usual tolerance from which the other elements are checked."""
_LARGEST = 0.01  # share of the largest elements that is left out
_HUGE = 1000.0  # factor over the median from which an element is huge; all huge elements are left out,
_MOST_HUGE = 0.2  # but no larger share than this: whole channels of a narrow tensor may be huge
_FEWEST = 16  # elements; of fewer than a hundred, one is left out
_MOSTLY = 0.5  # share outside the usual tolerance from which the smaller elements are checked by themselves
_LARGER = 0.25  # share of the largest elements that this check leaves out
_HALF_WRONG = 0.5  # error of the rest from which it is completely wrong
_SAMPLE = 1 << 16  # elements that are read
_GLANCE = 1 << 12  # elements that show, in clear cases, whether a few hold the norm of the reference
_CLEARLY = 2.0  # safety factor of that glance: on the error that would matter, and on the share that is left out
_MOST_READ = 1 << 20  # elements that are read for the errors of tokens
_FEW = 0.001  # share of the elements, at least one, that may be wrong by themselves
_NEARLY_ALL = 0.9  # share of the squared error
_ROUNDINGS = 4  # half steps of a type that one element may be off by
_MANY_TOKENS = 64  # tokens; among fewer, a wrong one shows in the norm
_WIDTH_OF_TOKEN = 32  # numbers; a shorter last axis may be the time of a convolution, with numbers near 0
_LOUD = 2.0  # factor over the median error from which the tokens of a stretch are checked
_MOST_LOUD = 4  # stretches
_SMALL = 0.3  # size of a token relative to the usual, below which the usual size is used instead
WRONG_TOKEN = 3.0
"""Factor over the limit of healthy layers from which a token is wrong."""


def hides_nothing(diff: Diff, dtypes: tuple[str, str]) -> bool:
    """Whether the norm of a pair that agrees is sufficient, without a second look at elements, channels or tokens.

    That holds for most pairs of a healthy 32-bit run. In few bits, tokens and channels are always checked.
    """
    is_even = diff.outside < MANY_OUTSIDE * diff.elements or not diff.elements
    return is_even and not diff.apart and growth_for(dtypes) == GROWTH


def hidden_error(row: Row, diff: Diff, dtypes: tuple[str, str], carried: float | None) -> float | None:
    """The error of most elements of a pair that seems right, if a few large elements hide that it is not."""
    kind, floor = floor_for(*dtypes)
    is_clean = carried is None or carried <= floor.agrees
    if kind == "exact" or not (row.verdict.name == "agrees" or (row.verdict.name == "drifts" and is_clean)):
        return None
    # Every tensor is a little further off without its largest elements; that alone hides nothing.
    most = max(floor.diverges, GROWTH_OF_FEW_BITS * diff.rel_l2)
    error = _error_of_most(row.pair, diff, most, may_vanish=kind == "float8")
    return error if error is not None and not error <= most else None


def loud_stretches(diff: Diff, dtypes: tuple[str, str]) -> list[tuple[int, int]]:
    """Stretches (begin and end) where, in few bits, a tensor of many tokens is further off than in most places."""
    if growth_for(dtypes) == GROWTH or diff.apart or diff.is_complex or len(diff.shape) < 2:
        return []
    if not diff.elements or diff.shape[-1] < _WIDTH_OF_TOKEN or diff.elements < _MANY_TOKENS * diff.shape[-1]:
        return []
    errors, begins = diff.bucket_rms, edges(diff.elements)
    loud = np.flatnonzero(errors > _LOUD * np.median(errors))
    loudest = loud[np.argsort(errors[loud])[-_MOST_LOUD:]]
    return [(int(begins[k]), int(begins[k + 1])) for k in loudest]


def wrong_token(ref: Array, cand: Array, stretches: Sequence[tuple[int, int]], dtypes: tuple[str, str]) -> float | None:
    """The error of the worst token in some stretches of two tensors, if that token is wrong by itself."""
    worst = max(_worst_token(ref, cand, *stretch) for stretch in stretches)
    return worst if worst > WRONG_TOKEN * floor_for(*dtypes)[1].diverges else None


def _worst_token(ref: Array, cand: Array, begin: int, end: int) -> float:
    """The largest relative error of a token in a stretch; errors of small tokens are relative to a minimum size."""
    width = ref.shape[-1]
    tokens = slice(begin // width, -(-end // width))
    wide, other = (side.reshape(-1, width)[tokens].astype(np.float64) for side in (ref, cand))
    return float(relative_errors(wide, other).max(initial=0.0))


def relative_errors(ref: NDArray[np.float64], cand: NDArray[np.float64]) -> NDArray[np.float64]:
    """The relative error of each row; errors of small rows are relative to a minimum size."""
    with np.errstate(all="ignore"):
        sizes, errors = np.linalg.norm(ref, axis=1), np.linalg.norm(np.nan_to_num(cand - ref), axis=1)
        scale = np.maximum(sizes, _SMALL * np.median(sizes))
        return np.asarray(np.divide(errors, scale, where=scale > 0, out=np.zeros_like(errors)))


def of_wrong_token(error: float, measured: Measurement, carried: float | None) -> Verdict:
    """Judge a pair by its worst token."""
    verdict = judge_diff(measured.diff._replace(rel_l2=error), measured.dtypes, carried, Limits())
    why = f"rel_l2 {measured.diff.rel_l2:.1e} holds for most tokens; one is off by {error:.1e}"
    return Verdict(verdict.name, why if carried is None else f"{why}, and its input is off by {carried:.1e}")


def of_hidden(error: float, measured: Measurement, carried: float | None) -> Verdict:
    """Judge a pair by the error of most of its elements."""
    verdict = judge_diff(measured.diff._replace(rel_l2=error), measured.dtypes, carried, Limits())
    why = f"rel_l2 {measured.diff.rel_l2:.1e} comes from a few large elements; the others are off by {error:.1e}"
    return Verdict(verdict.name, why if carried is None else f"{why}, and its input is off by {carried:.1e}")


def _error_of_most(pair: Pair, diff: Diff, most: float, *, may_vanish: bool) -> float | None:
    """rel_l2 without the largest hundredth of the reference's elements and without all huge ones.

    None if no more than ``most`` is hidden. If the small elements are completely wrong it is their error, unless they
    ``may_vanish`` in a type of so few bits.
    """
    if diff.apart or diff.elements < _FEWEST or diff.outside < MANY_OUTSIDE * diff.elements:
        return None
    values = values_of(pair)
    if values is None:
        return None
    sides = as_reals(*values)
    if diff.outside >= _MOSTLY * diff.elements and not may_vanish:
        small = _error_without(_LARGER, *(_sample(side, _GLANCE) for side in sides))
        if small is not None and small > max(most, _HALF_WRONG):
            return small
    if diff.elements > _GLANCE and diff.rms * _CLEARLY <= most * _least_rms_of_most(_sample(sides[0], _GLANCE)):
        return None
    return _error_without(_LARGEST, *(_sample(side, _SAMPLE) for side in sides))


def _error_without(share: float, ref: NDArray[np.float64], cand: NDArray[np.float64]) -> float | None:
    """rel_l2 without a share of the reference's largest elements, at least one; None if nothing is left."""
    with np.errstate(all="ignore"):
        both_finite = np.isfinite(ref) & np.isfinite(cand)
        ref, cand = ref[both_finite], cand[both_finite]
        size = np.abs(ref)
        huge = int((size > _HUGE * np.median(size)).sum()) if ref.size else 0
        left_out = max(1, int(share * ref.size), min(huge, int(_MOST_HUGE * ref.size)))
        last = ref.size - left_out - 1  # the largest of the remaining elements
        if last < 0:
            return None
        is_rest = size <= np.partition(size, last)[last]
        norm = _norm(ref[is_rest])
        return _norm(cand[is_rest] - ref[is_rest]) / norm if norm > 0 else None


def _least_rms_of_most(sample: NDArray[np.float64]) -> float:
    """A lower bound on the RMS of a sample without its largest elements; 0 if nothing is known.

    Clipping bounds how much of the clipped squares the left-out elements can hold, wherever they are. If there are huge
    elements, more may be left out than the usual share, so nothing is known.
    """
    with np.errstate(all="ignore"):
        squares = sample * sample
        most = 4 * float(squares.mean())  # twice the RMS: if a few elements hold it, nothing is left below
        if not most < np.inf or float(squares.max()) > _HUGE**2 * float(np.median(squares)):
            return 0.0
        left = float(np.minimum(squares, most).mean()) - _CLEARLY * _LARGEST * most
    return math.sqrt(max(0.0, left))


def _norm(values: NDArray[np.float64]) -> float:
    """The Euclidean norm; numpy's own wakes a thread for every core, which takes longer than the norm."""
    return float(np.sqrt((values * values).sum()))


def _sample(side: Array, size: int) -> NDArray[np.float64]:
    """Elements spread over the whole tensor; all of a small one. The stride is odd, so that no axis is skipped."""
    flat = side.reshape(-1)
    return flat[:: max(1, flat.size // size) | 1].astype(np.float64)


def are_few_wrong(pair: Pair, diff: Diff, own: tuple[str, str], way: tuple[str, str]) -> bool:
    """Whether a few elements hold all of the error, each more than rounding in the coarsest type on the way explains.

    All other elements agree as closely as their own type allows, so no error came from before.
    """
    (kind, floor), coarse = floor_for(*own), floor_for(*way)[0]
    if kind == coarse or "exact" in (kind, coarse) or diff.apart or not diff.rel_l2 > floor.diverges:
        return False
    few = max(1, int(_FEW * diff.elements))
    if few * diff.max_abs**2 < _NEARLY_ALL * diff.elements * diff.rms**2 or diff.elements <= 2 * few:
        return False
    values = values_of(pair)
    if values is None:
        return False
    ref, cand = (side.reshape(-1).astype(np.float64) for side in as_reals(*values))
    with np.errstate(all="ignore"):
        off = np.nan_to_num(np.abs(cand - ref))
        order = np.argpartition(off, off.size - few)
        rest, worst = order[:-few], order[-few:]
        size = float(np.linalg.norm(ref[rest]))
        scale = np.maximum(np.abs(ref[worst]), size / np.sqrt(rest.size))
        is_more = off[worst] > _ROUNDINGS * UNITS[coarse] * scale
        return bool(is_more.any()) and float(np.linalg.norm(off[rest])) <= floor.agrees * size


# --- of each token --------------------------------------------------------------------------------


def token_errors(pair: Pair) -> NDArray[np.float64] | None:
    """The relative error of each token, or of evenly spread tokens; None if the tensor has no tokens."""
    sides = _tokens_of(pair)
    return None if sides is None else errors_of_tokens(*sides)


def _tokens_of(pair: Pair) -> tuple[Array, Array] | None:
    """Both sides of a pair of floats, if they have tokens."""
    sides = values_of(pair)
    has_tokens = sides is not None and sides[0].ndim >= 2 and all(is_float(side.dtype) for side in sides)
    return sides if has_tokens else None


def errors_of_tokens(ref: Array, cand: Array) -> NDArray[np.float64]:
    """The relative error of each row of two tensors, or of evenly spread rows."""
    wide, other = _spread_rows(ref, cand)
    with np.errstate(all="ignore"):
        sizes = np.linalg.norm(wide, axis=1)
        errors = np.linalg.norm(other - wide, axis=1)
        return np.asarray(errors[sizes > 0] / sizes[sizes > 0])


def _spread_rows(ref: Array, cand: Array) -> tuple[Array, Array]:
    """The rows of two tensors, or evenly spread rows of large ones, in the widest type."""
    ref, cand = (side.reshape(-1, side.shape[-1]) for side in (ref, cand))
    step = max(1, ref.size // _MOST_READ)
    widest = np.complex128 if any(side.dtype.kind == "c" for side in (ref, cand)) else np.float64
    return ref[::step].astype(widest), cand[::step].astype(widest)


def even_error(pair: Pair) -> float:
    """The error that a tensor would have if all its tokens had the same size."""
    errors = token_errors(pair)
    return 0.0 if errors is None or not errors.size else float(np.sqrt(np.square(errors).mean()))


def error_of_worst_token(pair: Pair) -> float:
    """The largest error of a token, relative to that token's own size."""
    errors = token_errors(pair)
    return 0.0 if errors is None else float(errors.max(initial=0.0))


def largest_error(pair: Pair) -> float:
    """The largest error of a token, relative to the usual size of tokens."""
    sides = _tokens_of(pair)
    if sides is None:
        return 0.0
    wide, other = _spread_rows(*sides)
    with np.errstate(all="ignore"):
        usual = float(np.median(np.linalg.norm(wide, axis=1)))
        return float(np.linalg.norm(np.nan_to_num(other - wide), axis=1).max(initial=0.0)) / usual if usual else 0.0
