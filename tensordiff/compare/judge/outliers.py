"""Errors that a few large elements hide, and errors that are few elements.

A norm is that of its largest elements. Trained models have activations thousands of times larger than all others, and
one element of 1e9 makes 999 wrong ones beside it look like rounding. So before a pair agrees by its norm, the elements
without the largest must agree too. That reads the pair again, or a sample of it, and only where many elements lie
outside the usual tolerance of their type.

And where rounding on the way to a tensor excuses an error, that error is everywhere. A single element that is far off
among others that agree to the last bits of their own type is no rounding of a coarser one before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensordiff.align.match import Pair
from tensordiff.compare.judge.measurement import Measurement
from tensordiff.compare.judge.verdict import GROWTH_OF_FEW_BITS, UNITS, Verdict, floor_for, judge_diff
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.measure.dispatch import as_reals
from tensordiff.compare.row import Row, values_of
from tensordiff.dump.dtypes import Array

_MANY = 0.05  # share of the elements outside the usual tolerance from which the others are looked at
_LARGEST = 0.01  # share of the elements that is left out
_FEWEST = 128  # elements; of fewer, one is more than that share
_SAMPLE = 1 << 16  # elements
_FEW = 0.001  # share of the elements, one at least, that may be wrong by themselves
_NEARLY_ALL = 0.9  # share of the squared error
_ROUNDINGS = 4  # half steps of a type that one element may be off by


def hidden_error(row: Row, diff: Diff, dtypes: tuple[str, str], carried: float | None) -> float | None:
    """The error of most elements of a pair that seems right, where a few large ones hide that it is not."""
    kind, floor = floor_for(*dtypes)
    is_clean = carried is None or carried <= floor.agrees
    if kind == "exact" or not (row.verdict.name == "agrees" or (row.verdict.name == "drifts" and is_clean)):
        return None
    error = _error_of_most(row.pair, diff)
    # Without its largest elements every tensor is a little further off: that alone hides nothing.
    most = max(floor.diverges, GROWTH_OF_FEW_BITS * diff.rel_l2)
    return error if error is not None and not error <= most else None


def of_hidden(error: float, measured: Measurement, carried: float | None) -> Verdict:
    """Judge a pair by the error of most of its elements."""
    verdict = judge_diff(measured.diff._replace(rel_l2=error), measured.dtypes, carried, Limits())
    why = f"rel_l2 {measured.diff.rel_l2:.1e} is that of a few large elements; the others are off by {error:.1e}"
    return Verdict(verdict.name, why if carried is None else f"{why}, and {carried:.1e} came in")


def _error_of_most(pair: Pair, diff: Diff) -> float | None:
    """rel_l2 without the largest hundredth of the reference's elements; None where nothing can be hidden."""
    if diff.apart or diff.elements < _FEWEST or diff.outside < _MANY * diff.elements:
        return None
    values = values_of(pair)
    if values is None:
        return None
    ref, cand = (_sample(side) for side in as_reals(*values))
    with np.errstate(all="ignore"):
        both_finite = np.isfinite(ref) & np.isfinite(cand)
        ref, cand = ref[both_finite], cand[both_finite]
        left_out = max(1, int(_LARGEST * ref.size))
        if ref.size <= left_out:
            return None
        rest = np.argpartition(np.abs(ref), ref.size - left_out)[: ref.size - left_out]
        size = float(np.linalg.norm(ref[rest]))
        return float(np.linalg.norm(cand[rest] - ref[rest])) / size if size > 0 else None


def _sample(side: Array) -> NDArray[np.float64]:
    """Elements spread over the whole tensor; all of a small one. The stride is odd, so no axis is skipped."""
    flat = side.reshape(-1)
    return flat[:: max(1, flat.size // _SAMPLE) | 1].astype(np.float64)


def are_few_wrong(pair: Pair, diff: Diff, own: tuple[str, str], way: tuple[str, str]) -> bool:
    """Whether a few elements hold all of the error, each more than a rounding of what is coarsest on the way.

    All others agree as finely as their own type, so what came before brought them no error.
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
