"""Attention weights are judged by the scores that they were made of, and by nothing less where those are wrong."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tensordiff.compare.row import Row
from tensordiff.dump.dtypes import Array
from tests.compare.test_comparer import rows
from tests.making import numbers

LARGE = 8.0 * numbers(1, 4, 24, 24)
CAUSAL = np.tril(np.ones((24, 24), bool))


def weights(scores: Array, seen: Array = CAUSAL) -> Array:
    wide = np.where(seen, scores.astype(np.float64), -np.inf)
    made = np.exp(wide - wide.max(-1, keepdims=True))
    return np.asarray((made / made.sum(-1, keepdims=True)).astype(ml_dtypes.bfloat16))


def judged(reference: Array, candidate: Array) -> Row:
    return rows({"attn-output_1": reference}, {"attn-output_1": candidate})[0]


def rounded(scores: Array) -> Array:
    return scores.astype(ml_dtypes.bfloat16).astype(np.float32)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_rounding_of_large_scores_is_no_error_of_weights(scale: float) -> None:
    """Scores of 20 and more are off by a few hundredths, and small weights by as much of themselves."""
    nudged = rounded(scale * LARGE) + 0.02 * scale * numbers(1, 4, 24, 24, seed=3)
    row = judged(weights(scale * LARGE), weights(nudged))
    assert row.verdict.name != "diverges"


def test_other_scores_are() -> None:
    assert judged(weights(LARGE), weights(1.3 * LARGE)).verdict.name == "diverges"
    assert judged(weights(LARGE), weights(LARGE + numbers(1, 4, 24, 24, seed=3))).verdict.name == "diverges"


def test_so_is_another_mask_whose_scores_agree_where_both_see() -> None:
    behind = CAUSAL & ~np.tril(np.ones((24, 24), bool), -8)
    assert judged(weights(LARGE, behind), weights(LARGE)).verdict.name == "diverges"
    assert judged(weights(LARGE), weights(LARGE, behind)).verdict.name == "diverges"


def test_what_does_not_add_up_to_one_is_judged_as_it_is() -> None:
    half = ml_dtypes.bfloat16(0.5)
    nudged = rounded(3 * LARGE) + 0.06 * numbers(1, 4, 24, 24, seed=3)
    sides = weights(3 * LARGE), weights(nudged)
    assert judged(*sides).verdict.name != "diverges"
    assert judged(half * sides[0], half * sides[1]).verdict.name == "diverges"


def test_so_is_one_query_of_thousands() -> None:
    """Its scores are next to nothing in the error of all, and may not be among those that are read for it."""
    scores, seen = 3.0 * numbers(1, 8, 512, 512), np.tril(np.ones((512, 512), bool))
    other = scores.copy()
    other[0, 3, 301] = 3.0 * numbers(512, seed=3)
    assert judged(weights(scores, seen), weights(other, seen)).verdict.name == "diverges"


def test_so_is_a_window_over_many_keys_of_little_weight() -> None:
    scores, seen = 0.1 * numbers(1, 4, 1, 4096), np.ones((1, 4096), bool)
    window = np.arange(4096) >= 2048
    assert judged(weights(scores, seen), weights(scores, window)).verdict.name == "diverges"
    assert judged(weights(scores, window), weights(scores, seen)).verdict.name == "diverges"
