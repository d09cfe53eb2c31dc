"""Large collections in slices: the same answers as from plain ones, and no step that keeps other threads waiting."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensordiff.util.slices import (
    SlicedDict,
    SlicedSet,
    dict_for,
    in_order,
    items_in_order,
    release,
    set_for,
    sorted_positions,
)


@given(st.lists(st.text("ab1", max_size=3)), st.integers(1, 40))
def test_keys_that_are_sorted_in_parts_are_sorted(keys: list[str], part: int) -> None:
    assert sorted_positions(keys, part) == sorted(range(len(keys)), key=keys.__getitem__)


@given(st.lists(st.floats(allow_nan=False)), st.integers(1, 40))
def test_numbers_are_sorted_in_parts_too(keys: list[float], part: int) -> None:
    assert sorted_positions(keys, part) == sorted(range(len(keys)), key=keys.__getitem__)


@given(st.lists(st.tuples(st.text("abc", max_size=2), st.integers(0, 3))))
def test_a_sliced_dict_is_as_a_dict(items: list[tuple[str, int]]) -> None:
    sliced: SlicedDict[str, int] = SlicedDict()
    plain: dict[str, int] = {}
    for key, value in items:
        sliced[key] = plain[key] = value
    assert list(sliced.items()) == list(plain.items()) and len(sliced) == len(plain)
    assert [sliced.get(key) for key in ("", "a", "bc")] == [plain.get(key) for key in ("", "a", "bc")]
    assert all(sliced[key] == value for key, value in plain.items())
    assert list(sliced.in_order()) == list(plain.values())
    with pytest.raises(KeyError):
        sliced["not there"]
    assert [sliced.setdefault(key, 9) for key in ("a", "z", "z")] == [
        plain.setdefault(key, 9) for key in ("a", "z", "z")
    ]
    assert list(sliced.items()) == list(plain.items())
    release(sliced)
    assert not sliced and list(sliced) == [] and sliced.get("a") is None


@given(st.sets(st.integers(0, 1 << 20)), st.integers(0, 1 << 20))
def test_a_sliced_set_is_as_a_set(some: set[int], one: int) -> None:
    sliced: SlicedSet[int] = SlicedSet()
    for member in some:
        sliced.add(member)
    assert set(sliced) == some and len(sliced) == len(some) and (one in sliced) == (one in some)
    release(sliced)
    assert len(sliced) == 0


@pytest.mark.parametrize("count", [0, 3, 1 << 20])
def test_a_dict_and_a_set_for_few_and_for_many_answer_alike(count: int) -> None:
    named, members = dict_for(count), set_for(count)
    for k in (3, 1, 2, 1):
        named[k] = str(k)
        members.add(k)
    assert list(in_order(named)) == ["3", "1", "2"] and list(items_in_order(named)) == [(3, "3"), (1, "1"), (2, "2")]
    assert named.get(2) == "2" and named.get(4) is None and 2 in members and 4 not in members and len(members) == 3
    assert isinstance(named, SlicedDict) is isinstance(members, SlicedSet) is (count > 3)
    release(named, members)
    assert not list(in_order(named)) and not len(members)


@pytest.mark.parametrize("count", [0, 5_000, 50_000])
def test_what_is_released_is_empty(count: int) -> None:
    some, named, members = [*range(count)], {str(k): k for k in range(count)}, {*range(count)}
    release(some, named, members)
    assert (some, named, members) == ([], {}, set())


class Counted:
    """Something of which one knows how many were freed."""

    freed = 0

    def __del__(self) -> None:
        Counted.freed += 1


@pytest.fixture
def eager_switches() -> Iterator[None]:
    """Another thread runs as soon as Python lets it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switches")
def test_others_run_while_a_collection_is_released() -> None:
    """Another thread sees the list half empty; freed at once it would be full or gone."""
    some: list[list[int]] = [[k] for k in range(300_000)]
    lengths, is_over = set[int](), threading.Event()

    def look() -> None:
        while not is_over.is_set():
            lengths.add(len(some))

    looking = threading.Thread(target=look)
    looking.start()
    while not lengths:
        pass
    release(some)
    is_over.set()
    looking.join()
    assert lengths - {0, 300_000}
