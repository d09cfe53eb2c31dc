"""Cells of a heatmap, and the rectangles a pair is read in: against whole-array numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordiff.compare.look.heat import Plane, heat
from tensordiff.compare.measure import chunks as module
from tensordiff.compare.measure.chunks import blocks, errors
from tensordiff.dump.dtypes import Array

SHAPES = st.lists(st.integers(1, 6), min_size=0, max_size=4).map(tuple)


@given(shape=SHAPES, most=st.integers(1, 40))
def test_blocks_cover_a_shape_once_in_order(shape: tuple[int, ...], most: int) -> None:
    places = np.arange(math.prod(shape)).reshape(shape)
    parts = [places[block].reshape(-1) for block in blocks(shape, most)]
    assert np.concatenate(parts).tolist() == list(range(places.size))
    assert max(map(len, parts)) <= most


def test_nothing_has_no_blocks() -> None:
    assert list(blocks((3, 0, 2))) == []


def test_errors_where_both_are_odd() -> None:
    ref = np.array([math.nan, math.inf, math.inf, 1.0])
    cand = np.array([math.nan, math.inf, -math.inf, math.nan])
    np.testing.assert_array_equal(errors(ref, cand)[2], [0, 0, math.inf, math.nan])


def by_hand(error: Array, plane: Plane) -> list[list[float]]:
    return [
        [float(error[plane.block(i, j, error.shape)].max()) for j in range(len(plane.columns) - 1)]
        for i in range(len(plane.rows) - 1)
    ]


@settings(deadline=None, max_examples=60)
@given(data=st.data(), most=st.integers(1, 60))
def test_each_cell_is_the_largest_of_its_block(data: st.DataObject, most: int) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=2, max_size=4).map(tuple))
    down, across = data.draw(st.permutations(range(len(shape))))[:2]
    rows, columns = (
        tuple(sorted(data.draw(st.sets(st.integers(0, shape[axis]), min_size=2)))) for axis in (down, across)
    )
    rng = np.random.default_rng(0)
    ref, cand = rng.standard_normal((2, *shape))
    plane = Plane(down, across, rows, columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.blocks, "__defaults__", (most,))
        *_, cells = heat(ref, cand, plane)
    assert cells.tolist() == by_hand(np.abs(cand - ref), plane)


def test_a_nan_fills_its_cell_and_no_other() -> None:
    ref = np.zeros((4, 4))
    cand = ref.copy()
    cand[1, 1], cand[3, 0], cand[3, 3] = math.nan, math.inf, 2.0
    *_, cells = heat(ref, cand, Plane(0, 1, (0, 2, 4), (0, 2, 4)))
    np.testing.assert_array_equal(cells, [[math.nan, 0], [math.inf, 2]])
