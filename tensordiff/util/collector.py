"""Holding Python's garbage collector while much is made that stays: an index read, a dump measured.

Nothing made meanwhile is garbage, and looking for it in a growing heap takes as long as the reading. Let go of, the
collector would look at all of it at once, since it takes it for new; so it is told that all of it is old.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_held() -> Iterator[None]:
    """Collect nothing within; outside, all is as it was."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            _call_all_old()
            gc.enable()


def _call_all_old() -> None:
    """Put everything among what is looked at least: no object is touched, only their lists are joined."""
    if not gc.get_freeze_count():  # what somebody froze must stay so
        gc.freeze()
        gc.unfreeze()
