"""Keeping Python's garbage collector away from what is no garbage.

All threads stand still while it looks through every object there is: a third of a second at a hundred thousand rows,
again and again, and not one row is garbage. What threads have made for the screen to keep is put out of its reach
(``gc.freeze``, which takes no time). What the screen itself leaves behind is collected once a second, in a turn of the
event loop of its own, and not in the midst of painting.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from tensordiff.util.collector import collector_held

TIDY_S = 1.0
_NEVER = 1 << 30
_FEW = 20_000
"""Objects that are looked through in a few milliseconds."""


def keep() -> None:
    """Never look through what there is now; only what the screen left behind lately is collected before."""
    if gc.get_count()[0] < _FEW:
        gc.collect(0)
    gc.freeze()


@contextmanager
def kept() -> Iterator[None]:
    """Collect nothing within, and never look through what was made there."""
    with collector_held():
        try:
            yield
        finally:
            keep()


@contextmanager
def tidied() -> Iterator[None]:
    """Within, what has lived for long is looked through by ``tidy`` alone; afterwards all is as it was."""
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def tidy() -> None:
    """Collect what was left behind, if anything was made since the last time."""
    if gc.isenabled() and gc.get_count()[1]:
        gc.collect()
