"""The picture of an error: every wrong element is seen, however large the tensor."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tensordiff.report.row_detail import heat
from tests.making import numbers


def test_a_small_tensor_is_shown_whole() -> None:
    a = numbers(3, 5)
    found = heat(a, a + np.float32(0.5))
    assert found is not None
    assert (found.rows, found.columns) == (3, 5)
    assert np.asarray(found.cells) == pytest.approx(0.5, rel=1e-5)


def test_one_wrong_element_of_many_is_seen() -> None:
    a = numbers(2, 300, 1000)
    b = a.copy()
    b[1, 299, 999] += 1
    found = heat(a, b)
    assert found is not None
    cells = np.asarray(found.cells)
    assert cells.shape == (48, 96)
    assert cells[-1, -1] == pytest.approx(1, rel=1e-5)
    assert np.count_nonzero(cells) == 1


@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3, 4, 5)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    a = np.ones(shape, "f4")
    found = heat(a, a)
    assert found is not None
    assert found.rows * found.columns == a.size


def test_nothing_of_an_empty_tensor() -> None:
    assert heat(np.zeros((0, 3)), np.zeros((0, 3))) is None


def test_nan_on_one_side() -> None:
    found = heat(np.array([1.0, np.nan, np.inf]), np.array([np.nan, np.nan, np.inf]))
    assert found is not None
    assert math.isnan(found.cells[0][0])
    assert found.cells[0][1:] == (0, 0)
