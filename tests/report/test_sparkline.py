"""Profiles as one line of text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensordiff.report.labels import BARS, shrink, sparkline

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("value", "bar"),
    [
        (0.0, "·"),
        (1e-300, "▁"),
        (1e-8, "▁"),
        (1.1e-7, "▂"),
        (1.1e-4, "▅"),
        (0.5, "█"),
        (1.0, "█"),
        (1e300, "█"),
        (NAN, "×"),
        (INF, "∞"),
    ],
)
def test_one_bar(value: float, bar: str) -> None:
    assert sparkline([value], 1) == bar


@given(st.floats(1e-8, 1.0), st.floats(1e-8, 1.0))
def test_a_larger_error_never_has_a_lower_bar(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert BARS.index(sparkline([low], 1)) <= BARS.index(sparkline([high], 1))


@given(st.lists(st.floats(0, 1) | st.sampled_from([NAN, INF]), max_size=64), st.integers(0, 40))
def test_as_wide_as_asked_or_as_there_is(profile: list[float], width: int) -> None:
    assert len(sparkline(profile, width)) == min(width, len(profile))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=64), st.integers(1, 40))
def test_the_largest_survives_shrinking(profile: list[float], width: int) -> None:
    assert max(shrink(profile, width)) == max(profile)


@pytest.mark.parametrize("profile", [[0.0, NAN, 1.0, INF], [INF, NAN], [NAN, INF], [NAN, 0.0]])
def test_a_nan_is_larger_than_anything(profile: list[float]) -> None:
    assert sparkline(profile, 1) == "×"


def test_an_infinity_is_larger_than_any_number() -> None:
    assert sparkline([1e300, INF, 0.0], 1) == "∞"


def test_each_stretch_shows_its_own_largest() -> None:
    assert shrink([1, 2, 3, 4, 5, 6, 7, 8], 4) == [2, 4, 6, 8]
    assert shrink([1, 2, 3, 4, 5], 2) == [2, 5]
