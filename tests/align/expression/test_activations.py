"""Activations against the standard library's functions, element by element in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordiff.align.expression import evaluate, parse
from tensordiff.align.expression.activations import erfc
from tensordiff.dump.dtypes import DTYPES, Array


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


EXACT: dict[str, Callable[[float], float]] = {
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: x * math.erfc(-x / math.sqrt(2)) / 2,
    "gelu_tanh": lambda x: x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
}


def worked_out(function: str, x: Array) -> Array:
    return evaluate(parse(f"{function}(x)"), {"x": x}.__getitem__)


def exact(function: str, x: Array) -> Array:
    return np.array([EXACT[function](value) for value in x.astype(np.float64).reshape(-1).tolist()]).reshape(x.shape)


@pytest.mark.parametrize("function", EXACT)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "float8_e4m3fn"])
def test_accurate_relative_to_itself_far_into_the_tail(function: str, dtype: str) -> None:
    x = np.linspace(-8, 8, 4001).astype(DTYPES[dtype])
    result = worked_out(function, x)
    assert result.dtype == (np.float64 if dtype == "float64" else np.float32)
    rtol = 1e-13 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(result, exact(function, x), rtol, atol=1e-40)


@pytest.mark.parametrize("function", EXACT)
def test_as_near_as_float32_allows_where_values_are_not_small(function: str) -> None:
    x = np.linspace(-1, 8, 4001, dtype=np.float32)
    np.testing.assert_allclose(worked_out(function, x), exact(function, x), 4e-7)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_anywhere_in_float64(values: list[float]) -> None:
    x = np.array(values)
    np.testing.assert_allclose(worked_out("gelu", x), exact("gelu", x), 1e-12, 1e-290)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(-30, 30), min_size=1, max_size=50))
def test_erfc_is_the_standard_library_s(values: list[float]) -> None:
    x = np.array(values)
    np.testing.assert_allclose(erfc(x), [math.erfc(value) for value in values], 2e-13, 1e-300)
    np.testing.assert_allclose(1 - erfc(x), [math.erf(value) for value in values], 1e-14, 1e-14)


@pytest.mark.parametrize("function", EXACT)
def test_at_the_ends(function: str) -> None:
    x = np.array([0.0, -0.0, 1e30, -1e30, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(worked_out(function, x), np.array([0, 0, 1e30, 0, np.inf, np.nan], np.float32))


@pytest.mark.parametrize("function", EXACT)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3), (70_000,)])
def test_any_shape_and_layout(function: str, shape: tuple[int, ...]) -> None:
    x = np.asarray(np.random.default_rng(0).standard_normal(shape), np.float32)
    for array in (x, x.T):
        result = worked_out(function, array)
        assert result.shape == array.shape
        np.testing.assert_allclose(result, exact(function, array), 3e-6)
