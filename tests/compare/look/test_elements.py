"""The closer look: against whole-array numpy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordiff.compare.look.elements import (
    Element,
    Histogram,
    errors_along,
    histogram,
    window,
    worst_elements,
    worst_in,
)
from tensordiff.compare.measure import chunks as module

T = TypeVar("T")


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32), k=st.integers(1, 20))
def test_worst_elements_are_the_largest(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    ref = rng.standard_normal((5, 7)).astype(np.float32)
    cand = ref + rng.standard_normal((5, 7)).astype(np.float32)
    elements = worst_elements(ref, cand, k)
    error = np.abs(cand.astype(float) - ref.astype(float))
    assert [e.error for e in elements] == sorted(error.reshape(-1).tolist(), reverse=True)[:k]
    for element in elements:
        assert error[element.index] == element.error
        assert (ref[element.index], cand[element.index]) == (element.reference, element.candidate)


def test_worst_across_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 10)
    ref, cand = np.zeros(100), np.arange(100.0)
    assert [e.index for e in worst_elements(ref, cand, 3)] == [(99,), (98,), (97,)]


def test_a_nan_is_worse_than_anything_and_equal_elements_are_not_worst() -> None:
    ref = np.array([1.0, 2.0, math.nan, 4.0, math.inf])
    cand = np.array([1.0, math.nan, math.nan, 9.0, math.inf])
    assert [e.index for e in worst_elements(ref, cand)] == [(1,), (3,)]


def test_complex_numbers_are_pairs_of_reals() -> None:
    ref = np.array([1 + 2j, 3 + 4j])
    found = worst_elements(ref, ref + np.array([0, 5j]), 3)
    assert [(e.index, e.reference, e.candidate) for e in found] == [((1, 1), 4.0, 9.0)]


def test_the_relative_error_is_that_of_max_rel() -> None:
    assert Element((0,), 2.0, 3.0, 1.0).relative == 0.5
    assert Element((0,), 0.0, 1e-3, 1e-3).relative == 1e-3 / 1e-10
    assert math.isinf(Element((0,), math.inf, 1.0, math.inf).relative)


def test_the_worst_of_a_rectangle() -> None:
    ref = np.zeros((4, 6))
    cand = ref.copy()
    cand[2, 3], cand[0, 0] = 1.0, 9.0
    assert worst_in(ref, cand, (slice(1, 4), slice(2, 6))) == (2, 3)
    assert worst_in(ref, cand, (slice(3, 4), slice(1, 6))) == (3, 1)


def last(found: Iterator[T]) -> T:
    return list(found)[-1]


@pytest.mark.parametrize("most", [1, 7, 1 << 18])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_error_along_an_axis(axis: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensordiff.compare.measure.chunks.blocks.__defaults__", (most,))
    rng = np.random.default_rng(0)
    ref, cand = rng.standard_normal((2, 4, 5, 6)).astype(np.float32)
    others = tuple(k for k in range(3) if k != axis % 3)
    error = np.abs(cand.astype(float) - ref.astype(float))
    found = last(errors_along(ref, cand, axis))
    np.testing.assert_allclose(found.rms, np.sqrt((error**2).mean(others)), rtol=1e-12)
    np.testing.assert_array_equal(found.largest, error.max(others))


def test_along_an_axis_with_odd_values() -> None:
    ref = np.zeros((3, 2))
    cand = np.array([[0, math.nan], [math.inf, 1], [2, 3]])
    found = last(errors_along(ref, cand, 0))
    np.testing.assert_array_equal(found.largest, [math.nan, math.inf, 3])
    np.testing.assert_array_equal(found.rms, [math.nan, math.inf, math.sqrt(13 / 2)])


def test_along_the_axes_of_nothing() -> None:
    assert last(errors_along(np.zeros((2, 0)), np.zeros((2, 0)), 0)).largest.tolist() == [0, 0]
    assert last(errors_along(np.zeros((2, 0)), np.zeros((2, 0)), 1)).largest.tolist() == []


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32), per_decade=st.sampled_from([1, 2, 5, 10]))
def test_histogram_is_numpy_s(seed: int, per_decade: int) -> None:
    rng = np.random.default_rng(seed)
    error = 10 ** rng.uniform(-12, 3, 500)
    found = last(histogram(np.zeros(500), error)).merged(per_decade)
    edges = [found.edge(k) for k in range(found.first, found.first + len(found.counts) + 1)]
    assert np.histogram(error, edges)[0].tolist() == list(found.counts)
    assert sum(found.counts) == 500
    assert found.counts[0] and found.counts[-1]


def test_histogram_counts_every_element_once() -> None:
    cand = np.array([0.0, 0.5, 0.05, 0.07, math.nan, math.inf, -math.inf])
    found = last(histogram(np.zeros(7), cand))
    assert (found.zero, found.nan, found.inf, sum(found.counts)) == (1, 1, 2, 3)
    assert found.merged(1)._replace(zero=0) == Histogram(-2, (2, 1), 0, 1, 2, 1)


@pytest.mark.parametrize("power", [-308, -7, -3, 0, 5, 308])
def test_a_power_of_ten_begins_its_bin(power: int) -> None:
    found = last(histogram(np.zeros(1), np.array([float(f"1e{power}")]))).merged(1)
    assert (found.first, found.counts) == (power, (1,))


def test_the_smallest_and_the_largest_float_have_a_bin() -> None:
    found = last(histogram(np.zeros(2), np.array([5e-324, 1.7976931348623157e308])))
    assert sum(found.counts) == 2


def test_histogram_of_nothing() -> None:
    assert last(histogram(np.zeros(0), np.zeros(0))) == Histogram(0, (), 0, 0, 0)


def test_a_window_is_what_lies_there() -> None:
    rng = np.random.default_rng(0)
    ref, cand = rng.standard_normal((2, 3, 8, 9))
    index, rows, columns = (1, 4, 4), slice(2, 5), slice(6, 9)
    found = window(ref, cand, index, 1, 2, rows, columns)
    np.testing.assert_array_equal(found.reference, ref[1, 2:5, 6:9])
    np.testing.assert_array_equal(found.candidate, cand[1, 2:5, 6:9])
    np.testing.assert_array_equal(found.difference, (cand - ref)[1, 2:5, 6:9])
    np.testing.assert_array_equal(found.relative, (np.abs(cand - ref) / np.abs(ref))[1, 2:5, 6:9])
    turned = window(ref, cand, index, 2, 1, columns, rows)
    np.testing.assert_array_equal(turned.reference, ref[1, 2:5, 6:9].T)
    alone = window(ref, cand, index, 0, None, slice(0, 3), slice(0, 1))
    np.testing.assert_array_equal(alone.reference, ref[:, 4:5, 4])


def test_a_window_on_odd_values() -> None:
    ref, cand = np.array([math.nan, math.inf, 0.0, math.inf]), np.array([math.nan, math.inf, math.nan, 1.0])
    found = window(ref, cand, (0,), 0, None, slice(0, 4), slice(0, 1))
    np.testing.assert_array_equal(found.difference[:, 0], [0, 0, math.nan, -math.inf])
    np.testing.assert_array_equal(found.relative[:, 0], [0, 0, math.nan, math.inf])


def test_a_window_keeps_integers_as_they_are() -> None:
    ref = np.array([2**63 - 1], np.int64)
    found = window(ref, ref - 1, (0,), 0, None, slice(0, 1), slice(0, 1))
    assert (found.reference.item(), found.difference.item()) == (2**63 - 1, -1.0)
