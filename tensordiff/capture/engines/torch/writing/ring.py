"""Rings of memory for copies that wait to be written, on the host or pinned for GPUs.

Fresh memory costs several times more than copying into it. So one block is used for all copies, in large pages where
the system has them, and it is filled from its beginning whenever it is empty. One thread takes from it and one gives
back, without a lock.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

_ALIGNED = 64  # bytes: so that no element and no cache line is split


class Ring:
    """One block of memory, taken in parts and given back in the same order.

    Places are numbered continuously, so that a later one is larger; ``at`` is the position of a place in the block.
    """

    def __init__(self, nbytes: int, memory: Any = None) -> None:
        """``memory`` is the block, a new one by default."""
        self.nbytes = aligned(nbytes)
        self.memory = _block(self.nbytes) if memory is None else memory
        self._view = memoryview(self.memory)
        self._taken = self._given = 0

    def take(self, nbytes: int) -> int | None:
        """A place for so many bytes, at most the size of the block; None while there is no room."""
        if self._taken == self._given:
            self.clear()
        begin = self._taken
        left = self.nbytes - begin % self.nbytes
        if nbytes > left:
            begin += left
        end = begin + aligned(nbytes)
        if end - self._given > self.nbytes:
            return None
        self._taken = end
        return begin

    def at(self, place: int) -> int:
        """The position of a place in the block."""
        return place % self.nbytes

    def bytes_of(self, place: int, nbytes: int) -> memoryview:
        """The bytes at a place."""
        at = place % self.nbytes
        return self._view[at : at + nbytes]

    def give_back(self, place: int, nbytes: int) -> None:
        """Free a place, and all that was taken before it."""
        self._given = place + aligned(nbytes)

    def clear(self) -> None:
        """Free everything."""
        self._taken = self._given = 0


def aligned(nbytes: int) -> int:
    """The bytes that a place takes: at least one line, so that no two places are equal."""
    return (nbytes + _ALIGNED - 1) // _ALIGNED * _ALIGNED or _ALIGNED


def _block(nbytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # optional: a kernel without large pages provides small ones
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class PinnedRing(Ring):
    """A ring in pinned memory, which a GPU writes into by itself; raises ``RuntimeError`` if the system has none.

    Pinned memory cannot be swapped out, so only one ring of it is used, again and again.
    """

    def __init__(self, nbytes: int) -> None:
        self._pinned = torch.empty(aligned(nbytes), dtype=torch.uint8, pin_memory=True)
        super().__init__(nbytes, self._pinned.numpy())

    def copy(self, place: int, tensor: Tensor) -> Any:
        """Queue a copy of a GPU's tensor into a place; returns the event that is recorded when the copy is complete.

        The copy is queued behind the kernels that compute the tensor, and the model continues. Whoever reads the bytes
        waits for the event, which is on the same stream.
        """
        begin = self.at(place)
        held = self._pinned[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        held.copy_(tensor, non_blocking=True)
        ready = torch.cuda.Event(blocking=True)  # a waiting thread sleeps instead of spinning on a core
        ready.record(torch.cuda.current_stream(tensor.device))
        return ready


def tensor_pieces(tensor: Tensor, most: int) -> Iterator[Tensor]:
    """Split a tensor in row-major order into parts of at most ``most`` bytes, without copying."""
    if tensor.nbytes <= most or tensor.dim() == 0:
        yield tensor
        return
    if tensor.is_contiguous():
        tensor = tensor.view(-1)
    rows = most // tensor[0].nbytes
    if rows == 0:
        for row in tensor:
            yield from tensor_pieces(row, most)
        return
    yield from tensor.split(rows)
