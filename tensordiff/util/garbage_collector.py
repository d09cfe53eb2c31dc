"""Keeping Python's garbage collector away from large heaps that hold no garbage.

A collection looks through every tracked object while all threads wait: a third of a second at a hundred thousand rows.
Reading an index or measuring a dump makes many objects that stay, so the collector is paused meanwhile (``gc_paused``).
The app also takes what its threads made out of the collector's reach for good (``freeze_heap``, ``heap_frozen``), and
collects what the screen left behind in a turn of the event loop of its own, not in the midst of painting
(``collected_when_idle``, ``collect_when_idle``). A comparison that is closed is looked for among all that was taken out
of reach (``collect_closed``).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

IDLE_COLLECTION_S = 1.0
"""How often the app calls ``collect_when_idle``."""
_NEVER = 1 << 30
_FEW = 20_000
"""Objects that are looked through in a few milliseconds."""


@contextmanager
def gc_paused() -> Iterator[None]:
    """Collect nothing within; afterwards the collector is on again, if it was."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            _age_all()
            gc.enable()


def _age_all() -> None:
    """Move all objects to the oldest generation: else the next collection would look at all that is new at once."""
    if not gc.get_freeze_count():  # what somebody froze must stay so
        gc.freeze()
        gc.unfreeze()


def freeze_heap() -> None:
    """Never look through what there is now; what is young and few is collected before."""
    if gc.get_count()[0] < _FEW:
        gc.collect(0)
    gc.freeze()


@contextmanager
def heap_frozen() -> Iterator[None]:
    """Collect nothing within, and never look through what was made there."""
    with gc_paused():
        try:
            yield
        finally:
            freeze_heap()


@contextmanager
def collected_when_idle() -> Iterator[None]:
    """Within, the oldest generation is collected by ``collect_when_idle`` alone; afterwards all is as it was."""
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def collect_when_idle() -> None:
    """Collect what was left behind, if anything was made since the last time."""
    if gc.isenabled() and not _closed.collect() and gc.get_count()[1]:
        gc.collect()


class _Closed:
    """Large things that were closed and may be frozen: the collector looks for them among all there is.

    That takes long, so it is not done every time. What is still held by a thread, or by a message on its way, is
    looked for again, after twice as many turns each time.
    """

    def __init__(self) -> None:
        self._things: WeakSet[object] = WeakSet()
        self._turns = self._wait = 1

    def add(self, thing: object) -> None:
        self._things.add(thing)
        self._turns = self._wait = 1

    def collect(self) -> bool:
        """Take a turn; whether all was looked through."""
        self._turns -= bool(self._things)
        if self._turns or not self._things:
            return False
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._wait *= 2
        self._turns = self._wait
        return True


_closed = _Closed()


def collect_closed(thing: object) -> None:
    """Something large is closed: ``collect_when_idle`` frees it, frozen or not, once nothing uses it any more."""
    _closed.add(thing)
