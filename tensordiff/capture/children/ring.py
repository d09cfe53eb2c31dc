"""Memory that copies wait in until they are written: one block, used round and round.

Memory that was never touched costs several times what is copied into it. So one block serves all, in large pages
where the system has them, and is filled anew from its beginning whenever all was given back: what is written as
quickly as it comes never reaches far into it. One thread takes, one gives back, and neither needs a lock for it; who
waits for room, and how, is decided in ``writing``.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

_ALIGNED = 64  # bytes: no element and no cache line is cut


class Ring:
    """One block of memory, taken in parts and given back in the same order.

    A place in it is counted on and on, so that a later one is larger; where that lies in the block is ``at``.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = _aligned(nbytes)
        self.memory = _block(self.nbytes)
        self._view = memoryview(self.memory)
        self._taken = self._given = 0

    def take(self, nbytes: int) -> int | None:
        """A place for so many bytes, not more than the block has; None while there is no room for them."""
        if self._taken == self._given:
            self.clear()
        begin = self._taken
        left = self.nbytes - begin % self.nbytes
        if nbytes > left:
            begin += left
        end = begin + _aligned(nbytes)
        if end - self._given > self.nbytes:
            return None
        self._taken = end
        return begin

    def at(self, place: int) -> int:
        """Where in the block a place is."""
        return place % self.nbytes

    def bytes_of(self, place: int, nbytes: int) -> memoryview:
        """What lies at a place."""
        at = place % self.nbytes
        return self._view[at : at + nbytes]

    def give_back(self, place: int, nbytes: int) -> None:
        """What lies there, and all that was taken before it, is no longer needed."""
        self._given = place + _aligned(nbytes)

    def clear(self) -> None:
        """Nothing of it is needed."""
        self._taken = self._given = 0


def _aligned(nbytes: int) -> int:
    """At least one line, so that no two places are the same."""
    return (nbytes + _ALIGNED - 1) // _ALIGNED * _ALIGNED or _ALIGNED


def _block(nbytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # only a wish: a kernel without large pages gives small ones
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
