"""Parts of a tensor that are wrong altogether, beside others that make the norm."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tensordiff.compare.row import Row
from tensordiff.dump.dtypes import Array
from tests.compare.test_comparer import rows
from tests.making import nudged, numbers

TYPES = {np.float32: 1e6, np.float16: 1e3, ml_dtypes.bfloat16: 1e2}
"""Types, and how many times as large some channels are that hide the others in them."""


def judged(reference: Array, candidate: Array, dtype: type = np.float32, name: str = "layers.0") -> Row:
    return rows({name: reference.astype(dtype)}, {name: candidate.astype(dtype)})[0]


# --- not blamed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_rounding_of_channels_of_very_different_sizes_agrees(dtype: type) -> None:
    reference = numbers(64, 256) * np.logspace(-6, 2, 256, dtype=np.float32)
    candidate = reference * (1 + 4e-3 * numbers(64, 256, seed=3))
    assert judged(reference, candidate, dtype).verdict.name == "agrees"


def test_what_is_left_where_large_terms_cancel_is_nobody_s_fault() -> None:
    reference = numbers(64, 100)
    reference[:, :30] = 1e-8 * numbers(64, 30, seed=4)
    candidate = reference.copy()
    candidate[:, :30] = 1e-8 * numbers(64, 30, seed=5)
    assert judged(reference, candidate).verdict.name == "agrees"


def test_a_few_channels_that_are_nearly_nothing_are_nobody_s_fault() -> None:
    reference = numbers(64, 4_096)
    reference[:, 7] *= 1e-3
    candidate = nudged(reference, 5e-3)
    candidate[:, 7] *= -1
    assert judged(reference, candidate, ml_dtypes.bfloat16).verdict.name == "agrees"


def test_types_of_eight_bits_hold_nothing_small_beside_something_large() -> None:
    reference = numbers(64, 200)
    reference[:, :100] *= 100
    candidate = reference.copy()
    candidate[:, 100:] = 0
    assert judged(reference, candidate, ml_dtypes.float8_e4m3fn).verdict.name == "agrees"


def test_one_wrong_row_of_four_makes_no_channel_wrong() -> None:
    """Of a single token with four heads, of which a norm scaled one up: a short channel is mostly that row."""
    reference = numbers(4, 16)
    reference[:, :4] = 0.02 * np.sign(reference[:, :4])
    reference[1, :4] *= 4
    candidate = nudged(reference, 5e-3)
    candidate[1, :4] *= 0.2
    row = judged(reference, candidate, ml_dtypes.bfloat16)
    assert "channels are completely wrong" not in row.verdict.why
    candidate[[0, 2, 3], :4] *= 0.2
    assert "channels are completely wrong" in judged(reference, candidate, ml_dtypes.bfloat16).verdict.why


# --- wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("share", [0.1, 0.3, 0.45, 0.6, 0.8])
def test_large_channels_hide_no_others(dtype: type, share: float) -> None:
    large = int(200 * share)
    reference, candidate = numbers(64, 200), numbers(64, 200, seed=1)
    reference[:, :large] *= TYPES[dtype]
    candidate[:, :large] = reference[:, :large]
    assert judged(reference, candidate, dtype, "mlp").verdict.name == "diverges"


@pytest.mark.parametrize("dtype", TYPES)
def test_large_tokens_hide_no_others(dtype: type) -> None:
    reference, candidate = numbers(64, 200), numbers(64, 200, seed=1)
    reference[:40] *= TYPES[dtype]
    candidate[:40] = reference[:40]
    assert judged(reference, candidate, dtype, "mlp").verdict.name == "diverges"


def test_one_large_number_hides_no_nine() -> None:
    reference, candidate = numbers(1, 10), numbers(1, 10, seed=1)
    reference[0, 0] = candidate[0, 0] = 1e9
    row = judged(reference, candidate)
    assert row.verdict.name == "diverges"
    assert "most elements are off by half of themselves or more" in row.verdict.why


@pytest.mark.parametrize("wrong", ["another", "zero", "scaled"])
def test_one_channel_of_thousands_is_seen_in_few_bits(wrong: str) -> None:
    reference = numbers(128, 4_096)
    candidate = nudged(reference, 1e-2)
    others = {"another": numbers(128, seed=9), "zero": 0, "scaled": 2 * reference[:, 77]}
    candidate[:, 77] = others[wrong]
    row = judged(reference, candidate, ml_dtypes.bfloat16)
    assert row.verdict.name == "diverges"
    assert "channel 77 of 4096 is completely wrong" in row.verdict.why


# --- integers in the place of floats -----------------------------------------------------------------------

IDS = np.array([[100_000, 5, 7, 128_000]], np.int64)


@pytest.mark.parametrize("swapped", [False, True])
def test_integers_that_one_side_holds_as_floats_must_be_the_same(swapped: bool) -> None:
    sides = {"ids": IDS}, {"ids": (IDS + np.array([[1, 0, 0, 0]])).astype(np.float32)}
    row = rows(*reversed(sides) if swapped else sides)[0]
    assert row.verdict.name == "diverges"
    assert "integers, of which one is off by 1" in row.verdict.why


def test_a_type_that_cannot_hold_them_makes_others_of_them() -> None:
    assert rows({"ids": IDS}, {"ids": IDS.astype(ml_dtypes.bfloat16)})[0].verdict.name == "diverges"


def test_integers_that_a_float_holds_agree() -> None:
    assert rows({"ids": IDS}, {"ids": IDS.astype(np.float32)})[0].verdict.name == "agrees"
