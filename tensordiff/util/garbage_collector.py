"""Keeping Python's garbage collector away from large heaps that hold no garbage.

A collection visits every tracked object while all threads wait: a third of a second for a hundred thousand rows.
Reading an index or measuring a dump makes many objects that stay, so collection is paused meanwhile (``gc_paused``).

The app also freezes what its threads have made, so that the collector never visits it (``freeze_heap``,
``heap_frozen``). It collects garbage of the screen in a turn of the event loop of its own, not while it paints
(``collected_when_idle``, ``collect_when_idle``, ``collect_if_much``). When a comparison is closed, its objects are
searched among all frozen ones (``collect_closed``). The memory that the C library keeps for reuse is then returned to
the system: the next comparison never quite fits into the gaps that the last one left, so the process would grow with
each.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

IDLE_COLLECTION_S = 1.0
"""How often the app calls ``collect_when_idle``."""
_NEVER_COLLECT = 1 << 30
_FEW_OBJECTS = 20_000
"""So many objects are visited in a few milliseconds."""
_MOST_UNCOLLECTED = 4
"""Collections of the middle generation, each of which leaves up to 7,000 objects to the oldest one."""


class _Pauses:
    """Counts the requests, in all threads, to pause the collector; it resumes when the last of them ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count, self._was_on = 0, False

    def begin(self) -> None:
        with self._lock:
            if not self._count:
                self._was_on = gc.isenabled()
            self._count += 1
            gc.disable()

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if not self._count and self._was_on:
                _move_to_oldest_generation()
                gc.enable()


_pauses = _Pauses()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Do not collect within the block. When no thread wants the pause any more, the collector resumes if it was on."""
    _pauses.begin()
    try:
        yield
    finally:
        _pauses.end()


_is_frozen = False
"""Whether something is known to be frozen. Python counts frozen objects one by one (two milliseconds for a hundred
thousand, while all threads wait), so it is asked at most once, and not about a heap that was frozen here."""


def _move_to_oldest_generation() -> None:
    """Move all objects to the oldest generation; otherwise the next collection would visit all new objects at once."""
    global _is_frozen
    _is_frozen = _is_frozen or gc.get_freeze_count() > 0
    if not _is_frozen:  # unfreezing would also affect what somebody else froze
        gc.freeze()
        gc.unfreeze()


def freeze_heap() -> None:
    """Never visit the objects that exist now. If few young ones exist, they are collected first."""
    if gc.get_count()[0] < _FEW_OBJECTS:
        gc.collect(0)
    _freeze()


def _freeze() -> None:
    global _is_frozen
    gc.freeze()
    _is_frozen = True


def _unfreeze() -> None:
    global _is_frozen
    gc.unfreeze()
    _is_frozen = False


@contextmanager
def heap_frozen() -> Iterator[None]:
    """Do not collect within the block, and never visit the objects that were made in it."""
    with gc_paused():
        try:
            yield
        finally:
            # Without collecting first: the count includes what was freed meanwhile, so it does not say how many
            # objects a collection would visit.
            _freeze()


@contextmanager
def collected_when_idle() -> Iterator[None]:
    """Within the block, only ``collect_when_idle`` collects the oldest generation; afterwards all is as before."""
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], _NEVER_COLLECT)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        _unfreeze()


def collect_if_much() -> None:
    """Collect garbage although keys come, if so much was made since the last time that it takes half as long as a key
    may wait.
    """
    if gc.isenabled() and gc.get_count()[2] > _MOST_UNCOLLECTED:
        gc.collect()


def collect_when_idle() -> None:
    """Collect garbage, if any objects were made since the last time."""
    if gc.isenabled() and not _closed.collect() and gc.get_count()[1]:
        gc.collect()


def give_back_memory() -> None:
    """Return unused memory of the heap to the system, if the C library can do that (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


class _ClosedObjects:
    """Large objects that were closed and may be frozen, so that finding them means visiting the whole heap.

    That takes long, so it is not done every time. An object that a thread or a queued message still holds is tried
    again later, after twice as many turns each time.
    """

    def __init__(self) -> None:
        self._things: WeakSet[object] = WeakSet()
        self._turns_left = self._wait = 1

    def add(self, thing: object) -> None:
        self._things.add(thing)
        self._turns_left = self._wait = 1

    def collect(self) -> bool:
        """Take a turn; returns whether the whole heap was visited."""
        self._turns_left -= bool(self._things)
        if self._turns_left or not self._things:
            return False
        gc.unfreeze()
        gc.collect()
        _freeze()
        give_back_memory()
        self._wait *= 2
        self._turns_left = self._wait
        return True


_closed = _ClosedObjects()


def collect_closed(thing: object) -> None:
    """Note that something large was closed: ``collect_when_idle`` frees it, frozen or not, once nothing uses it."""
    _closed.add(thing)
