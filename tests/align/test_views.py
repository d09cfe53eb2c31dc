"""Views: what is reconciled, what never is, and that what is said to be done is what is done."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensordiff.align.views import Shape, reconcile
from tensordiff.dump.dtypes import Array

SHAPES = st.lists(st.sampled_from([0, 1, 1, 1, 2, 3, 4, 6]), max_size=5).map(tuple)


@st.composite
def related(draw: st.DrawFn) -> tuple[Shape, Shape]:
    """Two shapes that may well be the same tensor's: one with ones put in, dropped, or its first two merged."""
    shape = list(draw(SHAPES))
    other = [n for n in shape if n != 1 or draw(st.booleans())]
    if len(other) >= 2 and draw(st.booleans()):
        other[:2] = [other[0] * other[1]]
    for _ in range(draw(st.integers(0, 2))):
        other.insert(draw(st.integers(0, len(other))), 1)
    sides = tuple(shape), tuple(other)
    return sides if draw(st.booleans()) else sides[::-1]


def applied(array: Array, views: tuple[str, ...]) -> Array:
    """Do what the names of views say, one after the other."""
    for view in views:
        what, *axes = view.split()
        if what == "squeeze":
            array = array.squeeze(tuple(map(int, axes)))
        else:
            assert view == "flatten 0 1"
            array = array.reshape(math.prod(array.shape[:2]), *array.shape[2:])
    return array


def ramp(shape: Shape) -> Array:
    return np.arange(math.prod(shape)).reshape(shape)


@given(st.one_of(related(), st.tuples(SHAPES, SHAPES)))
def test_what_is_reconciled_keeps_every_value_in_its_place(shapes: tuple[Shape, Shape]) -> None:
    views = reconcile(*shapes)
    if views is None:
        return
    ref, cand = (views.apply(ramp(shape)) for shape in shapes)
    assert ref.shape == cand.shape == views.shape
    assert np.array_equal(ref, cand)
    assert np.array_equal(ref.reshape(-1), np.arange(ref.size))


@given(st.one_of(related(), st.tuples(SHAPES, SHAPES)))
def test_the_views_named_are_the_views_applied(shapes: tuple[Shape, Shape]) -> None:
    views = reconcile(*shapes)
    if views is None:
        return
    assert applied(ramp(shapes[0]), views.reference).shape == views.shape
    assert applied(ramp(shapes[1]), views.candidate).shape == views.shape


@given(st.one_of(related(), st.tuples(SHAPES, SHAPES)))
def test_sides_may_be_swapped(shapes: tuple[Shape, Shape]) -> None:
    one, other = reconcile(*shapes), reconcile(*shapes[::-1])
    assert (one is None) == (other is None)


@given(SHAPES, st.data())
def test_ones_never_stand_in_the_way(shape: Shape, data: st.DataObject) -> None:
    other = [n for n in shape if n != 1]
    for _ in range(data.draw(st.integers(0, 3))):
        other.insert(data.draw(st.integers(0, len(other))), 1)
    assert reconcile(shape, tuple(other)) is not None


@given(st.integers(1, 5), st.integers(1, 5), st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_a_batch_may_be_merged_into_the_sequence(batch: int, length: int, rest: list[int]) -> None:
    assert reconcile((batch, length, *rest), (batch * length, *rest)) is not None


@given(SHAPES)
def test_a_shape_is_itself(shape: Shape) -> None:
    views = reconcile(shape, shape)
    assert views is not None
    assert (views.shape, views.named()) == (shape, [])


@pytest.mark.parametrize(
    ("reference", "candidate", "shape", "named"),
    [
        ((1, 9, 64), (9, 64), (9, 64), ["squeeze 0"]),
        ((9, 64), (1, 9, 64), (9, 64), ["candidate squeeze 0"]),
        ((2, 9, 64), (18, 64), (18, 64), ["flatten 0 1"]),
        ((18, 64), (2, 9, 64), (18, 64), ["candidate flatten 0 1"]),
        ((2, 9, 4, 16), (18, 4, 16), (18, 4, 16), ["flatten 0 1"]),
        ((2, 9, 1), (18, 1), (18, 1), ["flatten 0 1"]),
        ((1,), (), (), ["squeeze 0"]),
        ((1, 1, 1), (), (), ["squeeze 0 1 2"]),
        ((1, 1, 9), (1, 9), (1, 9), ["squeeze 0"]),
        ((9, 1, 1), (9, 1), (9, 1), ["squeeze 1"]),
        ((1, 9, 1), (9, 1), (9, 1), ["squeeze 0"]),
        ((1, 9, 1), (1, 9), (1, 9), ["squeeze 2"]),
        ((1, 9, 1, 64), (1, 9, 64), (1, 9, 64), ["squeeze 2"]),
        ((2, 1, 1, 3), (1, 2, 1, 1, 3, 1), (2, 1, 1, 3), ["candidate squeeze 0 5"]),
        ((1, 9), (9, 1), (9,), ["squeeze 0", "candidate squeeze 1"]),
        ((1, 2, 9, 64), (18, 64), (18, 64), ["squeeze 0", "flatten 0 1"]),
        ((1, 18, 64), (2, 9, 64), (18, 64), ["squeeze 0", "candidate flatten 0 1"]),
        ((2, 9, 1, 64), (1, 18, 64), (18, 64), ["squeeze 2", "flatten 0 1", "candidate squeeze 0"]),
        ((1, 0, 64), (0, 64), (0, 64), ["squeeze 0"]),
        ((2, 0, 64), (0, 64), (0, 64), ["flatten 0 1"]),
        ((0,), (1, 0), (0,), ["candidate squeeze 0"]),
    ],
)
def test_reconciled(reference: Shape, candidate: Shape, shape: Shape, named: list[str]) -> None:
    views = reconcile(reference, candidate)
    assert views is not None
    assert (views.shape, views.named()) == (shape, named)


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        ((2, 3), (3, 2)),
        ((6,), (2, 3)),
        ((2, 3, 4), (2, 12)),
        ((2, 3, 4), (24,)),
        ((2, 3, 4), (3, 2, 4)),
        ((4, 9, 16), (9, 4, 16)),
        ((9, 64), (64,)),
        ((9, 64), (1, 64)),
        ((0, 3), (3, 0)),
        ((0, 3), (0, 4)),
        ((0,), ()),
        ((2,), ()),
    ],
)
def test_never_reconciled(reference: Shape, candidate: Shape) -> None:
    assert reconcile(reference, candidate) is None


def test_applying_copies_nothing() -> None:
    array = ramp((1, 9, 64))
    views = reconcile(array.shape, (9, 64))
    assert views is not None
    assert np.shares_memory(views.apply(array), array)


@pytest.mark.parametrize(
    ("shapes", "named"),
    [
        (((1,), ()), ["squeeze 0"]),
        (((), (1, 1)), ["candidate squeeze 0 1"]),
        (((1, 1), ()), ["squeeze 0 1"]),
        (((), ()), []),
    ],
)
def test_a_scalar_has_no_dimension_left(shapes: tuple[Shape, Shape], named: list[str]) -> None:
    views = reconcile(*shapes)
    assert views is not None
    assert (views.shape, views.named()) == ((), named)
