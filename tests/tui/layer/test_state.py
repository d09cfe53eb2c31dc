"""What the layer screen is made of that has no screen: the heatmap's view, scales, what is typed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tensordiff.tui.layer.heat_picture import Two, View
from tensordiff.tui.layer.scale import Scale, scale_of
from tensordiff.tui.layer.typing import parse_heads, parse_index
from tensordiff.tui.text import wrapped

SIZES = st.tuples(st.integers(1, 5000), st.integers(1, 5000))
ROOMS = st.tuples(st.integers(1, 60), st.integers(1, 200))
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("moved"), st.integers(-9, 9), st.integers(-9, 9)),
        st.tuples(st.just("paged"), st.integers(-2, 2), st.integers(-2, 2)),
        st.tuples(st.just("zoomed"), st.integers(-1, 1)),
        st.tuples(st.just("at_cell"), st.integers(-5, 300), st.integers(-5, 300)),
    ),
    max_size=12,
)


def is_sound(view: View) -> None:
    for k in (0, 1):
        edges = view.edges(k)
        assert 0 <= edges[0] < edges[-1] <= view.size[k]
        assert list(edges) == sorted(set(edges)) and len(edges) - 1 <= view.room[k]
        assert edges[0] <= view.cursor[k] < edges[-1]
        cell = view.cell[k]
        assert edges[cell] <= view.cursor[k] < edges[cell + 1]


@given(size=SIZES, room=ROOMS, moves=MOVES)
def test_the_cursor_is_always_in_sight(
    size: tuple[int, int], room: tuple[int, int], moves: list[tuple[object, ...]]
) -> None:
    view = View((1, 1), (1, 1)).fitted(size, room)
    is_sound(view)
    for name, *by in moves:
        view = getattr(view, str(name))(*by)
        is_sound(view)
    is_sound(view.fitted(size, (7, 11)))


@given(size=SIZES, room=ROOMS)
def test_at_first_all_is_in_sight_and_at_last_single_elements(size: Two, room: Two) -> None:
    view = View((1, 1), (1, 1)).fitted(size, room)
    assert all((view.edges(k)[0], view.edges(k)[-1]) == (0, size[k]) for k in (0, 1))
    near = view.zoomed(view.deepest)
    assert near.per_cell == (1, 1)
    assert near.zoomed(0).per_cell == view.per_cell


def test_zooming_keeps_the_element_under_the_cursor() -> None:
    view = View((1, 1), (1, 1)).fitted((1000, 4000), (40, 100)).to((500, 3999))
    for _ in range(8):
        view = view.zoomed(1)
        assert view.cursor == (500, 3999)


@given(st.lists(st.floats().map(abs), max_size=20))
def test_a_scale_holds_every_finite_error(errors: list[float]) -> None:
    array = np.array(errors, np.float64)
    for is_log in (True, False):
        scale = scale_of(array, is_log)
        assert scale.low < scale.high
        assert all(0 <= scale.share(value) <= 1 for value in errors if math.isfinite(value))


def test_larger_errors_stand_higher_and_decades_are_labelled_once() -> None:
    scale = Scale(-8.0, 0.0)
    assert scale.share(1e-6) < scale.share(1e-3) < scale.share(1.0) == 1.0
    assert scale.share(0.0) == 0.0
    np.testing.assert_allclose(scale.shares(np.array([1e-8, 1e-4, 1.0])), [0, 0.5, 1])
    labels = [label for row in range(10) if (label := scale.label(row, 10))]
    assert labels[-1] == "1e+00" and len(set(labels)) == len(labels)


@pytest.mark.parametrize("text", ["3,17", " [3, 17] ", "3 17", "(3,17)", "+3,-47"])
def test_an_index_as_people_type_it(text: str) -> None:
    assert parse_index(text, (9, 64)) == (3, 17)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("3", "1 number, and it takes 2: one for each of"),
        ("3,x", "'x' is not a whole number"),
        ("9,0", "9 is outside axis 0, which has 9"),
        ("", "0 numbers, and it takes 2"),
        ("1e3,2", "is not a whole number"),
        ("٣,1", "is not a whole number"),
    ],
)
def test_a_wrong_index_is_told(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_index(text, (9, 64))


def test_the_only_element_of_a_scalar() -> None:
    assert parse_index("0", ()) == (0,)


def test_heads_divide_the_channels() -> None:
    assert parse_heads(" 4 ", 64) == (4,)
    for wrong in ("0", "1", "5", "128", "x", ""):
        with pytest.raises(ValueError, match="give a number that divides 64"):
            parse_heads(wrong, 64)


@given(st.text(st.characters(blacklist_categories=["Cs", "Cc", "Mn", "Me", "Cf"]), max_size=80), st.integers(2, 30))
def test_wrapping_loses_nothing_and_fits(text: str, width: int) -> None:
    lines = list(wrapped(text, width))
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(cell_len(line) <= width for line in lines)
