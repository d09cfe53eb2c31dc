"""Strict JSON, and the summary; the whole object is tested where the command prints it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensordiff.compare.comparer import Comparer
from tensordiff.report.comparison_json import dumps, mse_summary, statistics_of, strict
from tensordiff.search.outcome import Outcome
from tests.making import numbers, pairs

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


@given(VALUES)
def test_any_value_becomes_strict_json(value: Any) -> None:
    text = dumps(value)
    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text, parse_constant=refuse) == strict(value)


@pytest.mark.parametrize(
    ("value", "shown"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf"), (1.5, 1.5), (0, 0)]
)
def test_numbers_that_are_not_finite(value: float, shown: object) -> None:
    assert strict(value) == shown
    assert strict({"a": [value, (value,)]}) == {"a": [shown, [shown]]}


def test_a_lone_surrogate_survives() -> None:
    assert json.loads(dumps("a\ud800b")) == "a\ud800b"


def test_statistics() -> None:
    assert statistics_of([4.0, 1.0, 2.0, 5.0]) == {"min": 1, "max": 5, "mean": 3, "median": 3, "finite": 4}


def test_statistics_of_what_is_finite() -> None:
    assert statistics_of([math.nan, 2.0, math.inf]) == {"min": 2, "max": 2, "mean": 2, "median": 2, "finite": 1}


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, math.nan]])
def test_statistics_of_nothing(values: list[float]) -> None:
    assert statistics_of(values) == {"min": None, "max": None, "mean": None, "median": None, "finite": 0}


def test_the_summary_is_of_outputs_by_component() -> None:
    a = numbers(4, 4)
    names = ["layers.0.mlp-input_0", "layers.0.mlp-output", "layers.1.mlp-output", "norm-output", "broken-output"]
    reference = dict.fromkeys(names, a)
    candidate = reference | {"layers.0.mlp-input_0": a + 9, "layers.1.mlp-output": a + 2, "broken-output": None}
    found = mse_summary(Outcome(tuple(Comparer().rows(pairs(reference, candidate)))).rows)
    assert {part: about["pairs"] for part, about in found["components"].items()} == {"mlp": 2, "norm": 1}
    assert found["mse"]["max"] == pytest.approx(4.0, rel=1e-6)
    assert found["mse"]["mean"] == pytest.approx(4 / 3, rel=1e-6)
    assert found["components"]["norm"]["mse"]["max"] == 0
