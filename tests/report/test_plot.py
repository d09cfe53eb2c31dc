"""Which points of a plot are named."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tensordiff.report.plot import Point, outliers


def points(*values: float) -> list[Point]:
    return [Point(k, value, f"p{k}", "mlp") for k, value in enumerate(values)]


def test_what_stands_clear_is_named_worst_first() -> None:
    assert [p.label for p in outliers(points(1e-14, 2e-14, 1e-5, 3e-14, 1e-3, 1e-14))] == ["p4", "p2"]


def test_nothing_is_named_in_an_even_run() -> None:
    assert outliers(points(*(10**-k for k in range(8)))) == []
    assert outliers(points(0, 0, 0)) == []
    assert outliers([]) == []


def test_what_is_not_finite_comes_first() -> None:
    found = outliers(points(1e-9, math.inf, math.nan, 1e-9, 1.0, 2e-9))
    assert [p.label for p in found] == ["p2", "p1", "p4"]


@given(st.lists(st.floats(min_value=0), max_size=60))
def test_never_more_than_can_be_read(values: list[float]) -> None:
    assert len(outliers(points(*values))) <= 12
