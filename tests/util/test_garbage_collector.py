"""The garbage collector: kept away from what is kept, at work on the rest, and as it was when the app is gone."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tensordiff.util.garbage_collector import collect_when_idle, collected_when_idle, freeze_heap, heap_frozen
from tests.tui.app_host import running, samples


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


class Knot:
    """Garbage that only the collector finds."""

    def __init__(self, ends: list[int]) -> None:
        self.self, self.ends = self, ends

    def __del__(self) -> None:
        self.ends.append(1)


def test_what_was_made_within_is_out_of_reach_and_nothing_is_collected_meanwhile() -> None:
    ends: list[int] = []
    with heap_frozen():
        assert not gc.isenabled()
        knot = Knot(ends)
        with heap_frozen():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    del knot
    gc.collect()
    assert not ends and gc.get_freeze_count()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    with heap_frozen():
        pass
    assert not gc.isenabled()


def test_a_failure_within_lets_the_collector_go_on() -> None:
    with pytest.raises(ZeroDivisionError), heap_frozen():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_what_is_young_is_collected_before_the_rest_is_kept() -> None:
    ends: list[int] = []
    gc.collect()
    Knot(ends)
    freeze_heap()
    assert ends == [1]


def test_tidying_collects_the_old_and_is_undone() -> None:
    before, ends = gc.get_threshold(), list[int]()
    with collected_when_idle():
        assert gc.get_threshold()[2] > 10**6
        knot = Knot(ends)
        gc.collect(1)
        gc.collect(1)  # an old one by now
        del knot
        gc.collect(0)
        collect_when_idle()
        assert ends == [1]
    assert gc.get_threshold() == before


async def test_an_app_leaves_the_collector_as_it_found_it() -> None:
    before = gc.get_threshold(), gc.isenabled()
    async with running(samples()) as run:
        assert gc.get_freeze_count() and gc.isenabled()
        assert run.verdict == "diverges"
    assert (gc.get_threshold(), gc.isenabled(), gc.get_freeze_count()) == (*before, 0)
