"""Keeping Python's garbage collector away from large heaps that hold no garbage.

A collection looks through every tracked object while all threads wait: a third of a second at a hundred thousand rows.
Reading an index or measuring a dump makes many objects that stay, so the collector is paused meanwhile (``gc_paused``).
The app also takes what its threads made out of the collector's reach for good (``freeze_heap``, ``heap_frozen``), and
collects what the screen left behind in a turn of the event loop of its own, not in the midst of painting
(``collected_when_idle``, ``collect_when_idle``). A comparison that is closed is looked for among all that was taken out
of reach (``collect_closed``). What the C library keeps of its memory for later is given back to the system then: what
one comparison leaves free the next does not quite fit into, and each would leave the process larger.
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
"""Objects that are looked through in a few milliseconds."""


class _Pauses:
    """How many want the collector paused, in whatever threads: it goes on when the last of them is done."""

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
    """Collect nothing within; when nobody wants that any more, the collector is on again, if it was."""
    _pauses.begin()
    try:
        yield
    finally:
        _pauses.end()


_is_frozen = False
"""Whether something is known to be frozen. Python counts frozen objects one by one, a hundred thousand in two
milliseconds while all threads wait, so it is not asked of a heap that was frozen here, nor twice of any other."""


def _move_to_oldest_generation() -> None:
    """Move all objects to the oldest generation: else the next collection would look at all that is new at once."""
    global _is_frozen
    _is_frozen = _is_frozen or gc.get_freeze_count() > 0
    if not _is_frozen:  # what somebody froze must stay so
        gc.freeze()
        gc.unfreeze()


def freeze_heap() -> None:
    """Never look through what there is now; what is young and few is collected before."""
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
    """Collect nothing within, and never look through what was made there."""
    with gc_paused():
        try:
            yield
        finally:
            # Without collecting first: what was freed meanwhile was counted too, so the count does not tell how much
            # there is to look through.
            _freeze()


@contextmanager
def collected_when_idle() -> Iterator[None]:
    """Within, the oldest generation is collected by ``collect_when_idle`` alone; afterwards all is as it was."""
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], _NEVER_COLLECT)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        _unfreeze()


def collect_when_idle() -> None:
    """Collect what was left behind, if anything was made since the last time."""
    if gc.isenabled() and not _closed.collect() and gc.get_count()[1]:
        gc.collect()


def give_back_memory() -> None:
    """Give what is free within the heap back to the system, where the C library can do that (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


class _ClosedObjects:
    """Large things that were closed and may be frozen: the collector looks for them among all there is.

    That takes long, so it is not done every time. What is still held by a thread, or by a message on its way, is
    looked for again, after twice as many turns each time.
    """

    def __init__(self) -> None:
        self._things: WeakSet[object] = WeakSet()
        self._turns_left = self._wait = 1

    def add(self, thing: object) -> None:
        self._things.add(thing)
        self._turns_left = self._wait = 1

    def collect(self) -> bool:
        """Take a turn; whether all was looked through."""
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
    """Something large is closed: ``collect_when_idle`` frees it, frozen or not, once nothing uses it any more."""
    _closed.add(thing)
