"""The binary search as pure state: it ends, asks few questions, and is right wherever its assumption holds."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordiff.errors import TensordiffError
from tensordiff.search.bisect import Bisect, Mark, ProbePoint

Judge = Callable[[int], Mark]
MARKS: tuple[Mark, ...] = ("good", "bad", "skip")


def fresh(count: int) -> Bisect:
    return Bisect(tuple(ProbePoint(10 * k, f"layers.{k}") for k in range(count)))


def finish(bisect: Bisect, judge: Judge) -> Bisect:
    """Answer every question."""
    while (probe := bisect.probe) is not None:
        bisect = bisect.mark(judge(probe))
    return bisect


def truth(first_bad: int, skipped: frozenset[int] = frozenset()) -> Judge:
    return lambda at: "skip" if at in skipped else "good" if at < first_bad else "bad"


@st.composite
def profiles(draw: st.DrawFn) -> tuple[int, int]:
    """How many places, and the first bad one; one past the last where none is."""
    count = draw(st.integers(1, 3000))
    return count, draw(st.integers(0, count))


@given(profiles())
def test_the_first_bad_place_is_found_in_few_steps(profile: tuple[int, int]) -> None:
    count, first_bad = profile
    done = finish(fresh(count), truth(first_bad))
    assert len(done.marks) <= math.ceil(math.log2(count)) + 1
    assert len(done.marks) <= fresh(count).steps
    assert done.first_bad == (first_bad if first_bad < count else None)
    assert done.all_good == (first_bad == count)
    assert len(done.suspects) == (first_bad < count)


@given(profiles(), st.data())
def test_skips_leave_those_that_nobody_could_tell_apart(profile: tuple[int, int], data: st.DataObject) -> None:
    count, first_bad = min(profile[0], 60), min(profile[1], 60)
    skipped = data.draw(st.frozensets(st.integers(0, count - 1)))
    done = finish(fresh(count), truth(first_bad, skipped))
    good_until = max((k + 1 for k in range(min(first_bad, count)) if k not in skipped), default=0)
    bad_from = min((k for k in range(first_bad, count) if k not in skipped), default=count)
    assert done.suspects == range(good_until, min(bad_from + 1, count))
    assert done.first_bad == (bad_from if good_until == bad_from < count else None)
    assert len({position for _, position in done.marks}) == len(done.marks)


@given(profiles(), st.lists(st.booleans(), max_size=40))
def test_undoing_any_number_of_times_changes_nothing(profile: tuple[int, int], undos: list[bool]) -> None:
    bisect, judge = fresh(profile[0]), truth(profile[1])
    for undo in undos:
        if bisect.is_done:
            break
        marked = bisect.mark(judge(bisect.probe or 0))
        assert marked.undo() == bisect
        assert marked.undo().probe == bisect.probe
        bisect = bisect.undo() if undo else marked
    assert finish(bisect, judge).suspects == finish(fresh(profile[0]), judge).suspects


def test_undoing_nothing() -> None:
    assert fresh(3).undo() == fresh(3)


@pytest.mark.parametrize("count", [0, 1])
def test_hardly_any_places(count: int) -> None:
    bisect = fresh(count)
    assert (bisect.is_done, bisect.steps, len(bisect.suspects)) == (count == 0, count, count)
    assert finish(bisect, truth(0)).first_bad == (0 if count else None)
    assert finish(bisect, truth(1)).all_good


def test_ten_thousand_places_take_fourteen_steps() -> None:
    assert fresh(10_000).steps == 14
    assert fresh(10_000).probe == 5_000


def test_suspects_and_steps_shrink() -> None:
    bisect = fresh(100)
    seen = [(len(bisect.suspects), bisect.steps)]
    while bisect.probe is not None:
        bisect = bisect.mark("bad" if bisect.probe >= 70 else "good")
        seen.append((len(bisect.suspects), bisect.steps))
    assert seen == [(100, 7), (49, 6), (25, 5), (12, 4), (6, 3), (3, 2), (2, 1), (1, 0)]


def test_what_lies_beside_a_skipped_place_is_not_asked_next() -> None:
    """A stretch that cannot be judged is left after a few questions, not walked through."""
    stretch = frozenset(range(400, 600))
    for first_bad in (100, 700):
        done = finish(fresh(1000), truth(first_bad, stretch))
        assert done.first_bad == first_bad
        assert sum(mark == "skip" for mark, _ in done.marks) <= 3


def test_a_place_between_two_skipped_ones_is_not_asked_next() -> None:
    assert fresh(1000).mark("skip", 499).mark("skip", 501).probe in (249, 751)


def test_any_place_can_be_marked() -> None:
    bisect = fresh(100).mark("good", 20).mark("bad", 30)
    assert (bisect.suspects, bisect.probe) == (range(21, 31), 25)


def test_marks_that_say_nothing_new_are_kept() -> None:
    bisect = fresh(100).mark("good", 20).mark("good", 10).mark("bad", 30).mark("bad", 40).mark("skip", 50)
    assert bisect.suspects == range(21, 31)
    assert len(bisect.marks) == 5


@pytest.mark.parametrize(("mark", "at"), [("good", 30), ("good", 31), ("bad", 20), ("bad", 0)])
def test_a_mark_that_contradicts_another(mark: Mark, at: int) -> None:
    bisect = fresh(100).mark("good", 20).mark("bad", 30)
    with pytest.raises(TensordiffError, match=rf"^{10 * at} layers.{at} cannot be {mark} where .* undo one of the two"):
        bisect.mark(mark, at)


def test_nothing_is_left_to_mark() -> None:
    with pytest.raises(TensordiffError, match="nothing left to mark"):
        fresh(1).mark("bad").mark("bad")


def test_searching_again_before_an_earlier_bad_place() -> None:
    bisect = finish(fresh(100), truth(70)).before(40)
    assert bisect.bad_from == 40
    assert bisect.good_until == 0
    assert finish(bisect, truth(33)).first_bad == 33


def test_the_log() -> None:
    bisect = fresh(4).mark("skip").mark("good").mark("bad")
    assert bisect.log().splitlines()[:2] == [
        "# tensordiff bisect, 4 places",
        "# everything before the first bad place is good, all after it bad",
    ]
    assert bisect.log().splitlines()[2:] == ["skip 20 layers.2", "good 10 layers.1", "bad 30 layers.3"]
    assert fresh(4).replay(bisect.log()) == bisect


def test_the_log_of_a_search_that_is_done() -> None:
    done = finish(fresh(4), truth(2))
    assert done.log().endswith("\n# first bad: 20 layers.2\n")
    assert fresh(4).replay(done.log()).first_bad == 2


@given(st.lists(st.text(), min_size=1, max_size=12, unique=True), st.data())
@settings(max_examples=200)
def test_any_log_can_be_replayed(names: list[str], data: st.DataObject) -> None:
    start = bisect = Bisect(tuple(ProbePoint(3 * k, name) for k, name in enumerate(names)))
    for mark in data.draw(st.lists(st.sampled_from(MARKS), max_size=8)):
        bisect = bisect if bisect.is_done else bisect.mark(mark)
    assert start.replay(bisect.log()) == bisect
    assert all(line.isprintable() for line in bisect.log().split("\n"))


def test_a_log_that_somebody_wrote() -> None:
    log = "\r\n# mine\r\n  good 10\r\nbad 30 layers.3  \r\n"
    assert fresh(4).replay(log) == fresh(4).mark("good", 1).mark("bad", 3)


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        ("fine 10 layers.1", "line 1: 'fine 10 layers.1' is not a mark; write good, bad or skip, a number and a name"),
        ("good", "line 1: 'good' is not a mark"),
        ("good -1", "line 1: 'good -1' is not a mark"),
        ("good ١٠", "line 1: .* is not a mark"),
        ("good " + "9" * 5000, "line 1: 'good 9999.{60,70} is not a mark"),
        ("\ngood 11 layers.1", "line 2: number 11 is not one of the places searched here; the log is of other dumps"),
        ("good 10 layers.7", "line 1: number 10 is layers.1 here; the log is of other dumps, or of other options"),
        ("bad 10\n#\ngood 20", "line 3: 20 layers.2 cannot be good where 10 layers.1 is bad"),
    ],
)
def test_a_log_that_cannot_be_replayed(log: str, sentence: str) -> None:
    with pytest.raises(TensordiffError, match=f"^{sentence}"):
        fresh(4).replay(log)
