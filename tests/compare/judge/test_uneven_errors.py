"""Errors that a few large elements hide, in tensors of which only a sample is looked at."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensordiff.compare.judge import uneven_errors
from tensordiff.dump.dtypes import Array
from tests.compare.test_comparer import rows
from tests.making import numbers

SIZE = 200_000


@pytest.mark.parametrize("count", [1, 20, 500, 1_800])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_large_elements_hide_nothing_in_a_sampled_tensor(count: int, dtype: type) -> None:
    reference, candidate = numbers(SIZE), numbers(SIZE, seed=5)
    places = np.random.default_rng(3).choice(SIZE, count, replace=False)
    reference[places] = candidate[places] = 1e9
    row = rows({"layers.0": reference.astype(dtype)}, {"layers.0": candidate.astype(dtype)})[0]
    assert row.verdict.name == "diverges"
    assert "comes from a few large elements" in row.verdict.why


def test_an_even_reference_is_glanced_at_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    sample = uneven_errors._sample

    def watched(side: Array, size: int) -> Array:
        seen.append(size)
        return sample(side, size)

    monkeypatch.setattr(uneven_errors, "_sample", watched)
    reference = numbers(SIZE)
    candidate = (reference + 1e-3 * numbers(SIZE, seed=5)).astype(np.float16)
    row = rows({"layers.0": reference.astype(np.float16)}, {"layers.0": candidate})[0]
    assert row.diff is not None
    assert (row.verdict.name, row.diff.outside > 0.05 * SIZE) == ("agrees", True)
    assert set(seen) == {uneven_errors._GLANCE}


@pytest.mark.parametrize(("size", "large"), [(20, 1), (100, 1), (4_000, 80), (4_000, 900), (SIZE, SIZE // 10)])
def test_nor_do_they_in_small_tensors_or_where_there_are_many(size: int, large: int) -> None:
    reference, candidate = numbers(size), numbers(size, seed=5)
    reference[:large] = candidate[:large] = 1e9
    assert rows({"layers.0": reference}, {"layers.0": candidate})[0].verdict.name == "diverges"


def test_one_hides_no_few_that_are_far_off() -> None:
    reference = numbers(4_000)
    reference[0] = 1e9
    candidate = reference.copy()
    candidate[1:150] *= -50
    assert rows({"layers.0": reference}, {"layers.0": candidate})[0].verdict.name == "diverges"


@given(st.lists(st.floats(-1e30, 1e30), min_size=128, max_size=300), st.integers(0, 2**32 - 1))
def test_the_least_size_of_most_is_never_more_than_it_is(drawn: list[float], seed: int) -> None:
    few = np.random.default_rng(seed).standard_cauchy(300)
    for sample in (np.array(drawn), few):
        left_out = int(uneven_errors._LARGEST * sample.size)
        rest = np.sort(np.abs(sample))[: sample.size - left_out]
        assert uneven_errors._least_rms_of_most(sample) <= np.sqrt((rest * rest).sum() / sample.size) * (1 + 1e-9)


def test_a_row_of_one_number_is_no_token() -> None:
    """What a convolution gives in decoding is [batch, channels, 1], and some of these numbers nearly cancel."""
    reference = numbers(2, 128, 1)
    candidate = reference + 1e-2 * numbers(2, 128, 1, seed=5)
    reference[0, 7], candidate[0, 7] = 0.25, 0.4
    ref, cand = (side.astype(ml_dtypes.bfloat16) for side in (reference, candidate))
    row = rows({"layers.0.mixer.act": ref}, {"layers.0.mixer.act": cand})[0]
    assert row.verdict.name != "diverges", row.verdict.why
