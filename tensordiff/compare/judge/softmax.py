"""What a softmax gave, judged by the scores that it was made of.

A softmax turns an error of a score into an error of each weight that is as large, relative to it. Where scores are
large, as those of sharp attention are, a rounding of a score of 20 to bfloat16 makes a weight wrong by a tenth, though
the score is right by its own size. Scores are rarely dumped, but weights tell them, up to a number that all scores of
one query share. So weights in few bits are judged by the logarithms of both sides as well: those of queries spread over
all, and each of those that are further off than most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.judge.evidence import History, Measurement
from tensordiff.compare.judge.uneven_errors import WRONG_TOKEN, loud_stretches, relative_errors
from tensordiff.compare.judge.verdict import GROWTH, Verdict, floor_for, growth_for, judge_diff
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.row import Row, values_of
from tensordiff.dump.dtypes import Array, is_float

Reals = NDArray[np.float64]
_AXES = 3  # at least: of a router's probabilities the logits are dumped, too
_SUM = 0.05  # by how much the weights of a query may miss 1, in few bits
_NO_WEIGHT = 1e-6  # a smaller one is next to nothing, and may be nothing on one side
_HIDDEN = 1e-2  # what is nothing on one side adds up to no more than this on the other
_MOST_READ = 1 << 20  # elements


def unless_right_scores(history: History, row: Row, measured: Measurement) -> Row:
    """Weights whose scores are right are right."""
    if (error := right_scores(history, row, measured)) is None:
        return row
    why = f"rel_l2 {measured.diff.rel_l2:.1e}, and {error:.1e} of the scores that softmax made these weights of"
    return row._replace(verdict=Verdict("drifts", why))


def right_scores(history: History, row: Row, measured: Measurement) -> float | None:
    """The error of the scores of attention weights, in few bits, if it makes no culprit; None for all other pairs."""
    diff, dtypes = measured.diff, measured.dtypes
    if growth_for(dtypes) == GROWTH or diff.apart or len(row.shape or ()) < _AXES:
        return None
    sides = _sides(history, row, diff)
    if sides is None or sides[0].shape[-1] < 2 or not all(is_float(side.dtype) for side in sides):
        return None
    rows = [side.reshape(-1, side.shape[-1]) for side in sides]
    scores = _scores(*(side[:: max(1, side.size // _MOST_READ) | 1] for side in rows))
    error = None if scores is None else _distance(*scores)
    if error is None or _is_query_wrong(
        rows, loud_stretches(diff, dtypes), WRONG_TOKEN * floor_for(*dtypes)[1].diverges
    ):
        return None
    carried, most = history.upstream.carried_into(row.pair), history.upstream.worst_agreeing
    is_right = judge_diff(diff._replace(rel_l2=error), dtypes, carried, Limits(), None, most).name != "diverges"
    return error if is_right else None


def _sides(history: History, row: Row, diff: Diff) -> tuple[Array, Array] | None:
    """The numbers that a diff was measured of: all of a pair, or those of its visible tokens."""
    sides, visible = values_of(row.pair), history.padding.visible(row)
    if sides is None or sides[0].shape == diff.shape:
        return sides
    return (visible.ref, visible.cand) if visible is not None and visible.ref.shape == diff.shape else None


def _is_query_wrong(rows: Sequence[Array], stretches: Iterable[tuple[int, int]], most: float) -> bool:
    """Whether, in some stretches of the weights, the scores of a query are wrong by themselves."""
    width = rows[0].shape[-1]
    for begin, end in stretches:
        scores = _scores(*(side[begin // width : -(-end // width)] for side in rows))
        if scores is None or relative_errors(*scores).max(initial=0.0) > most:
            return True
    return False


def _scores(ref: Array, cand: Array) -> tuple[Reals, Reals] | None:
    """The logarithms of weights, without what all scores of a query share; None where a side holds no weights.

    Nor where one hides what the other sees.
    """
    ref, cand = np.asarray(ref, np.float64), np.asarray(cand, np.float64)
    if not (_are_weights(ref) and _are_weights(cand)):
        return None
    seen = (ref > _NO_WEIGHT) & (cand > _NO_WEIGHT)
    larger = np.maximum(ref, cand)
    if np.where(seen | (larger <= _NO_WEIGHT), 0.0, larger).sum(-1).max(initial=0.0) > _HIDDEN:
        return None
    one, other = (_centred(np.log(np.where(seen, side, 1.0)), seen) for side in (ref, cand))
    return one, other


def _distance(ref: Reals, cand: Reals) -> float | None:
    size = float(np.linalg.norm(ref))
    return float(np.linalg.norm(cand - ref)) / size if size > 0 else None


def _are_weights(side: Reals) -> bool:
    """Whether every row is what a softmax gives, or nothing."""
    sums = side.sum(-1)
    return bool(side.min(initial=0.0) >= 0 and sums.any() and (np.abs(sums[sums != 0] - 1) <= _SUM).all())


def _centred(logs: Reals, seen: NDArray[np.bool_]) -> Reals:
    means = logs.sum(-1, keepdims=True) / np.maximum(seen.sum(-1, keepdims=True), 1)
    return np.where(seen, logs - means, 0.0)
