"""The closer look: against whole-array numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordiff.compare import measure as module
from tensordiff.compare.detail import along, histogram, worst


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32), k=st.integers(1, 20))
def test_worst_elements_are_the_largest(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    ref = rng.standard_normal((5, 7)).astype(np.float32)
    cand = ref + rng.standard_normal((5, 7)).astype(np.float32)
    elements = worst(ref, cand, k)
    error = np.abs(cand.astype(float) - ref.astype(float))
    assert [e.error for e in elements] == sorted(error.reshape(-1).tolist(), reverse=True)[:k]
    for element in elements:
        assert error[element.index] == element.error
        assert (ref[element.index], cand[element.index]) == (element.reference, element.candidate)


def test_worst_across_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 10)
    ref, cand = np.zeros(100), np.arange(100.0)
    assert [e.index for e in worst(ref, cand, 3)] == [(99,), (98,), (97,)]


def test_a_nan_is_worse_than_anything_and_equal_elements_are_not_worst() -> None:
    ref = np.array([1.0, 2.0, math.nan, 4.0, math.inf])
    cand = np.array([1.0, math.nan, math.nan, 9.0, math.inf])
    assert [e.index for e in worst(ref, cand)] == [(1,), (3,)]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_profile_along_an_axis(axis: int) -> None:
    rng = np.random.default_rng(0)
    ref, error = rng.standard_normal((4, 5, 6)), np.zeros((4, 5, 6))
    np.moveaxis(error, axis, 0)[2] = 0.5
    profile = along(ref, ref + error, axis)
    assert profile[2] == pytest.approx(0.5 / np.sqrt(np.mean(ref**2))) and np.count_nonzero(profile) == 1


def test_profile_of_nothing() -> None:
    assert along(np.zeros((2, 3)), np.zeros((2, 3)), 0).tolist() == [0, 0]
    assert along(np.zeros((2, 3)), np.ones((2, 3)), 0).tolist() == [math.inf, math.inf]
    assert along(np.zeros((2, 0)), np.zeros((2, 0)), 0).tolist() == [0, 0]


def test_histogram_counts_every_element_once() -> None:
    ref = np.zeros(6)
    cand = np.array([0.0, 0.5, 0.05, 0.07, math.nan, math.inf])
    bins = histogram(ref, cand)
    assert (bins.decades, bins.counts, bins.zero, bins.odd) == ((-2, -1), (2, 1), 1, 2)
