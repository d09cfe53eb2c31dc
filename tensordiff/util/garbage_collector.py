"""Keeping Python's garbage collector away from large heaps that hold no garbage.

A collection looks through every tracked object while all threads wait: a third of a second at a hundred thousand rows.
Reading an index or measuring a dump makes many objects that stay, so the collector is paused meanwhile (``gc_paused``).
The app also takes what its threads made out of the collector's reach for good (``freeze_heap``, ``heap_frozen``), and
collects what the screen left behind in a turn of the event loop of its own, not in the midst of painting
(``collected_when_idle``, ``collect_when_idle``).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

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
    if gc.isenabled() and gc.get_count()[1]:
        gc.collect()
