"""Statistics of one tensor, against numpy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tensordiff.compare.look.statistics import Statistics, statistics
from tensordiff.dump.dtypes import DTYPES, Array

FLOATS = hnp.arrays(
    st.sampled_from([np.float64, np.float32, np.float16]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6),
    elements=st.floats(width=16, allow_nan=True, allow_infinity=True),
)


@given(FLOATS)
def test_floats(array: Array) -> None:
    found, finite = statistics(array), array[np.isfinite(array)].astype(np.float64)
    assert (found.nan, found.inf) == (np.isnan(array).sum(), np.isinf(array).sum())
    if not finite.size:
        assert found.minimum is found.maximum is found.mean is found.rms is None
        return
    assert (found.minimum, found.maximum) == (finite.min(), finite.max())
    assert found.mean == pytest.approx(finite.mean(), rel=1e-12, abs=1e-12)
    assert found.rms == pytest.approx(np.sqrt((finite**2).mean()), rel=1e-12)


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_type(name: str) -> None:
    array = np.array([1, 2, 4, 1], "float32").astype(DTYPES[name])
    found = statistics(array)
    if name == "bool":
        assert found == Statistics(1, 1, 1, 1, 0, 0)
    elif name.startswith("complex"):
        assert (found.minimum, found.maximum, found.mean) == (0, 4, 1)
    else:
        assert (found.minimum, found.maximum, found.mean) == (1, 4, 2)
        assert found.rms == pytest.approx(math.sqrt(22 / 4))


@pytest.mark.parametrize("size", [1e-300, 1e300, 1.7e308, 5e-324, 1e-160, 1e160])
def test_sizes_whose_squares_float64_cannot_hold(size: float) -> None:
    found = statistics(np.array([size, -size, size, size]))
    assert found.rms == pytest.approx(size)
    assert found.mean == pytest.approx(size / 2)


def test_small_values_beside_zeros_do_not_vanish() -> None:
    parts = np.zeros(1 << 19)
    parts[-1] = 1e-200
    assert statistics(parts).rms == pytest.approx(1e-200 / math.sqrt(1 << 19))


def test_parts_of_other_scales_add_up() -> None:
    array = np.concatenate([np.full(1 << 18, 1.0), np.full(1 << 18, 5.0), np.full(1 << 18, 0.7)])
    found = statistics(array)
    assert found.mean == pytest.approx(array.mean(), rel=1e-12)
    assert found.rms == pytest.approx(np.sqrt((array**2).mean()), rel=1e-12)


def test_large_integers_are_told_as_they_are() -> None:
    found = statistics(np.array([-(2**63), 2**63 - 1, 2**53 + 1], np.int64))
    assert (found.minimum, found.maximum) == (-(2**63), 2**63 - 1)
    assert statistics(np.array([2**64 - 1], np.uint64)).maximum == 2**64 - 1


def test_nothing() -> None:
    assert statistics(np.empty((3, 0), np.float32)) == Statistics(None, None, None, None, 0, 0)


def test_nothing_finite() -> None:
    assert statistics(np.array([np.nan, np.inf, -np.inf])) == Statistics(None, None, None, None, 1, 2)


def test_what_is_not_contiguous() -> None:
    array = np.arange(24.0).reshape(4, 6)[::2, ::3]
    assert statistics(array).mean == array.mean()
