"""Masks and masked scores: what is hidden on both sides neither hides an error nor makes one."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from tensordiff.compare.row import Row
from tensordiff.dump.dtypes import Array
from tests.compare.test_comparer import rows
from tests.making import nudged, numbers

SCORES = numbers(2, 4, 12, 12)
VISIBLE = np.broadcast_to(np.tri(12, dtype=bool), SCORES.shape)
LOWEST = float(np.finfo(np.float32).min)


def masked(scores: Array, number: float, *, adds: bool = False) -> Array:
    hidden = scores + np.float32(number) if adds else np.full_like(scores, number)
    return np.where(VISIBLE, scores, hidden).astype(np.float32)


def row_of(reference: Array, candidate: Array, name: str = "attn.scores") -> Row:
    return rows({name: reference}, {name: candidate})[0]


@pytest.mark.parametrize("number", [-1e4, -3e4, -5e4, -65504.0, -1e9, LOWEST, LOWEST / 2, -math.inf])
@pytest.mark.parametrize("adds", [False, True])
def test_a_mask_does_not_hide_wrong_scores(number: float, adds: bool) -> None:
    wrong = masked(nudged(SCORES, 0.5), number, adds=adds)
    row = row_of(masked(SCORES, number, adds=adds), wrong)
    assert row.verdict.name == "diverges"
    assert row.diff is not None
    assert row.diff.rel_l2 > 0.1


@pytest.mark.parametrize("number", [-1e4, -1e9, LOWEST, -math.inf])
def test_the_numbers_are_those_of_the_visible_scores(number: float) -> None:
    candidate = nudged(SCORES, 0.3)
    row = row_of(masked(SCORES, number), masked(candidate, number))
    assert row.diff is not None
    ref, cand = SCORES[VISIBLE].astype(np.float64), candidate[VISIBLE].astype(np.float64)
    assert row.diff.rel_l2 == pytest.approx(np.linalg.norm(cand - ref) / np.linalg.norm(ref))
    assert row.diff.max_abs == pytest.approx(np.abs(cand - ref).max())


@pytest.mark.parametrize(("ours", "theirs"), [(LOWEST, -1e9), (-1e9, -1e4), (-math.inf, LOWEST), (-65504.0, -math.inf)])
def test_scores_masked_with_other_numbers_agree(ours: float, theirs: float) -> None:
    assert row_of(masked(SCORES, ours), masked(SCORES, theirs)).verdict.name == "agrees"
    assert row_of(masked(SCORES, ours), masked(nudged(SCORES, 0.5), theirs)).verdict.name == "diverges"


def test_what_one_side_alone_hides_is_wrong() -> None:
    other = masked(SCORES, -1e9)
    other[..., 3, 0] = -1e9
    assert row_of(masked(SCORES, -1e9), other).verdict.name == "diverges"


@pytest.mark.parametrize("name", ["attention_mask", "attn.scores", "attn-input_attention_mask"])
@pytest.mark.parametrize("shown", [0.5, 1000.0, -1000.0])
def test_what_a_mask_shows_must_be_zero_where_the_reference_shows_zero(name: str, shown: float) -> None:
    zeros = np.zeros_like(SCORES)
    assert row_of(masked(zeros, -1e9), masked(zeros + np.float32(shown), -1e9), name).verdict.name == "diverges"
    assert row_of(masked(zeros, -1e9), masked(SCORES, -1e9), name).verdict.name == "diverges"
    assert row_of(masked(zeros, -1e9), masked(zeros, LOWEST), "attention_mask").verdict.name == "agrees"


def test_large_activations_are_not_left_out() -> None:
    """Trained models have a few channels far below -1e4; an error in these is an error."""
    large = numbers(16, 64)
    large[:, 7] = -2e4 - 1e3 * numbers(16)
    other = large.copy()
    other[:, 7] *= 1.5
    assert row_of(large, other, "layers.3").verdict.name == "diverges"
    single, moved = numbers(16, 64), numbers(16, 64)
    single[0, 7], moved[0, 7] = -21000, -31000
    assert row_of(single, moved, "layers.3").verdict.name == "diverges"


def test_large_inputs_without_a_zero_are_no_mask() -> None:
    """All elements lie far below zero on both sides, and differ: no number of a mask, and nothing visible."""
    row = rows({"a-input_0": -1e6 - A}, {"a-input_0": -3e6 - A})[0]
    assert row.verdict.name == "diverges"


A = np.abs(numbers(8, 8))


def test_a_mask_by_name_may_hide_everything() -> None:
    row = rows({"a-input_mask": np.full((4, 4), -1e9, "f4")}, {"a-input_mask": np.full((4, 4), LOWEST, "f4")})[0]
    assert row.verdict.why == "the same mask, in other numbers"


def test_what_was_unmasked_is_no_mask() -> None:
    reference, candidate = np.full((8, 8), -2e4, "f4"), np.full((8, 8), -9e9, "f4")
    assert row_of(reference, candidate, "unmasked_states").verdict.name == "diverges"


# --- a few large elements -----------------------------------------------------------------------------


@pytest.mark.parametrize("large", [1e5, 1e9, 1e30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
def test_one_large_element_does_not_hide_that_all_others_are_wrong(large: float, dtype: type) -> None:
    reference, candidate = numbers(1000), numbers(1000, seed=5)
    reference[17] = candidate[17] = large
    row = row_of(reference.astype(dtype), candidate.astype(dtype), "layers.0")
    assert row.verdict.name == "diverges"
    if large > 1e9:
        assert "comes from a few large elements" in row.verdict.why


def test_what_came_in_explains_a_hidden_error_too() -> None:
    reference, candidate = numbers(1000), numbers(1000, seed=5)
    reference[17] = candidate[17] = 1e9
    ports = ("a-input_0", "a-output")
    found = rows(dict.fromkeys(ports, reference), dict.fromkeys(ports, candidate))
    assert [row.verdict.name for row in found] == ["diverges", "drifts"]


def test_a_large_element_alone_is_no_doubt() -> None:
    reference = numbers(4096).astype(ml_dtypes.bfloat16)
    reference[17] = 3e4
    candidate = nudged(reference.astype(np.float32), 0) * (1 + 4e-3 * numbers(4096, seed=2))
    row = row_of(reference, candidate.astype(ml_dtypes.bfloat16), "layers.0")
    assert row.verdict.name == "agrees"
