"""How values are spread, against numpy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tensordiff.compare.look import statistics as module
from tensordiff.compare.look.statistics import QUANTILES, Distribution, Statistics, distribution
from tensordiff.dump.dtypes import Array

FLOATS = hnp.arrays(
    st.sampled_from([np.float64, np.float32, np.float16]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6),
    elements=st.floats(width=16, allow_nan=True, allow_infinity=True),
)


def whole(array: Array) -> Distribution:
    return list(distribution(array))[-1]


@given(FLOATS)
def test_floats(array: Array) -> None:
    found, finite = whole(array), array[np.isfinite(array)].astype(np.float64)
    assert found.elements == array.size
    if not finite.size:
        assert (found.std, found.quantiles) == (None, ())
        return
    assert found.std == pytest.approx(finite.std(), rel=1e-9, abs=1e-12)
    assert found.zeros == np.count_nonzero(finite == 0)
    assert found.quantiles == pytest.approx(np.quantile(finite, QUANTILES).tolist(), rel=1e-12, abs=1e-12)
    assert not found.sampled


@pytest.mark.parametrize("size", [1e-300, 1e300, 1.7e308])
def test_sizes_whose_squares_float64_cannot_hold(size: float) -> None:
    found = whole(np.array([size, -size, size, -size]))
    assert found.std == pytest.approx(size)
    assert found.quantiles[0] == -size and found.quantiles[-1] == size


def test_a_large_mean_does_not_swallow_the_deviation() -> None:
    array = 1e9 + np.array([-1.0, 1.0] * 1000)
    assert whole(array).std == pytest.approx(1.0)


def test_quantiles_of_a_large_tensor_are_of_a_sample_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLED", 100)
    found = whole(np.arange(1000.0))
    assert found.sampled
    assert found.quantiles[3] == pytest.approx(500, abs=10)
    assert found.zeros == 1


def test_nothing() -> None:
    assert whole(np.empty((3, 0), np.float32)) == Distribution(Statistics(None, None, None, None, 0, 0), 0)


def test_complex_numbers_count_as_two_reals_each() -> None:
    found = whole(np.array([1 + 0j, math.nan + 3j]))
    assert (found.elements, found.zeros, found.statistics.nan) == (4, 1, 1)
    assert found.std == pytest.approx(np.std([1, 0, 3]))


@pytest.mark.parametrize("array", [np.array([True, False]), np.array([3, 4], np.int32), np.array(5, np.uint8)])
def test_what_is_not_a_float(array: Array) -> None:
    assert whole(array).std == pytest.approx(array.std())
