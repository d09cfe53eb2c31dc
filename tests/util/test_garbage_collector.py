"""The garbage collector: kept away from what is kept, at work on the rest, and as it was when the app is gone."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensordiff.util import garbage_collector
from tensordiff.util.garbage_collector import (
    collect_closed,
    collect_when_idle,
    collected_when_idle,
    freeze_heap,
    gc_paused,
    heap_frozen,
)
from tests.tui.app_host import running, samples


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_what_is_frozen_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    count = gc.get_freeze_count

    def counting() -> int:
        counted.append(1)
        return count()

    monkeypatch.setattr(garbage_collector, "_is_frozen", False)
    monkeypatch.setattr(gc, "get_freeze_count", counting)
    gc.freeze()
    for _ in range(5):
        with gc_paused():
            pass
    assert len(counted) == 1 and count()  # and it stays frozen


class Knot:
    """Garbage that only the collector finds."""

    def __init__(self, ends: list[int]) -> None:
        self.self, self.ends = self, ends

    def __del__(self) -> None:
        self.ends.append(1)


def resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


class Large:
    """Much memory of the C library's, with something small of others after each piece."""

    def __init__(self, others: list[bytearray]) -> None:
        self.pieces = []
        for _ in range(5_000):
            self.pieces.append(bytearray(16_000))
            others.append(bytearray(700))


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library gives nothing back")
def test_what_a_closed_thing_held_goes_back_to_the_system() -> None:
    others: list[bytearray] = []
    before = resident_pages()
    large = Large(others)
    filled = resident_pages() - before
    collect_closed(large)
    del large
    still_held = Knot([])  # as something of what is closed mostly is at first
    collect_closed(still_held)
    collect_when_idle()
    assert resident_pages() - before < 0.6 * filled


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


def test_what_another_thread_pauses_stays_paused() -> None:
    """Of two that overlap the first to end must not let the collector loose on what the second is making."""
    begun, may_end = threading.Event(), threading.Event()

    def pause() -> None:
        with gc_paused():
            begun.set()
            may_end.wait()

    other = threading.Thread(target=pause)
    with gc_paused():
        other.start()
        begun.wait()
    assert not gc.isenabled()
    may_end.set()
    other.join()
    assert gc.isenabled()


def test_a_heap_that_was_frozen_here_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """To count takes a quarter of a second where a million pairs are frozen."""
    monkeypatch.setattr(garbage_collector, "_is_frozen", False)
    with heap_frozen():
        pass
    monkeypatch.setattr(gc, "get_freeze_count", lambda: pytest.fail("counted"))
    with gc_paused():
        pass
    assert gc.isenabled()


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
