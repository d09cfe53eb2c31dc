"""Holding Python's garbage collector while much is made that stays: an index read, a dump measured.

Nothing made meanwhile is garbage, and looking for it in a growing heap takes as long as the reading.
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
            gc.enable()
