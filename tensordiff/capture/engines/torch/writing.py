"""Writing tensors while the model runs: copies wait in a ring of memory and are written many at a time.

Memory that was never touched costs several times what is copied into it. So one block serves all copies, in large pages
where the system has them, and is filled from its beginning again whenever it is empty. One thread takes from it and one
gives back, without a lock. What waits is bounded in bytes: a model that is quicker than the disk is held up, and memory
does not grow. A tensor of any size goes through, in pieces.

Who writes depends on the cores. Where one is idle, a thread writes beside the model. Where the model computes with all
of them, such a thread would cost more than it gives, since all of the model's threads wait for the one it displaces;
then the caller writes, and a large tensor is written from where it lies, without a copy. In both cases the thread sees
to it that nothing waits for long. An error in it is raised where the next tensor is handed over, or at the end.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from tensordiff.capture.engines.torch.tensors import HostCopy, as_array, copy, resolved
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import EntryKey, Origin, Spec
from tensordiff.dump.shards import PIECE, pieces, raw
from tensordiff.dump.writer import DumpWriter

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


WAITING = 64 << 20
"""Bytes that may wait to be written."""

_ENOUGH = 1 << 20  # bytes that are worth a call of the system
_MOST = 8 << 20  # bytes, or a little more, that are written before their memory is given back
_LARGE = 1 << 19  # bytes of a tensor that are worth a call of their own, where the copy is saved by it
_LOOK_S = 0.1  # how long fewer bytes wait to be written and told of, and no longer: a run may be killed


class Label(NamedTuple):
    """What a dump says of a tensor beside its values."""

    place: EntryKey
    spec: Spec
    origin: Origin


class _Piece(NamedTuple):
    """Bytes that wait to be written."""

    held: int | HostCopy
    """Their place in the ring; or what a device is still writing to."""
    nbytes: int
    begins: Label | None
    """The tensor of which they are the first."""


class BackgroundWriter:
    """A dump writer with a thread of its own. The ``DumpWriter`` must be open, and is not closed here."""

    def __init__(self, writer: DumpWriter, waiting: int = WAITING, *, beside: bool | None = None) -> None:
        """``beside`` is whether the thread writes beside the model; by default where a core is left over."""
        self._writer, self._ring = writer, Ring(waiting)
        self._beside = has_spare_core() if beside is None else beside
        self._enough, self._largest = min(_ENOUGH, self._ring.nbytes // 2), min(PIECE, self._ring.nbytes)
        self._waiting: deque[_Piece] = deque()
        self._bytes_put = self._bytes_done = 0
        self._putting, self._writing, self._due = threading.Lock(), threading.Lock(), threading.Event()
        self._is_closing, self._log_s = False, time.monotonic() + _LOOK_S
        self._error: BaseException | None = None
        self.most_bytes = 0
        """The most that ever waited."""
        self._thread = threading.Thread(target=self._work, name="tensordiff-writer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what still waits, even where the model raised: it ran that far."""
        self.close()
        self._thread.join()
        if self._error is not None and kind is None:
            raise self._error

    def close(self) -> None:
        """Say that nothing more will come: what waits is written at once, while the caller does other things."""
        self._is_closing = True
        self._due.set()

    def put(self, place: EntryKey, origin: Origin, tensor: Tensor) -> int:
        """Have a tensor written as it is now; gives its bytes. Waits while too much waits already."""
        plain = resolved(tensor)
        if not plain.is_cpu:
            return self.put_copied(place, origin, copy(plain))
        seen = as_array(plain)
        with self._putting:
            label = Label(place, Spec(seen.shape, seen.dtype), origin)
            if not self._beside and seen.nbytes >= _LARGE and seen.flags.c_contiguous:
                self._write_all((label, raw(seen)))
            else:
                self._put_by_copy(label, seen)
        return seen.nbytes

    def put_copied(self, place: EntryKey, origin: Origin, copied: HostCopy) -> int:
        """Have a copy written that lies, or will lie, in memory of its own."""
        nbytes = copied.nbytes
        with self._putting:
            self._beside = True  # a device computes, and leaves the cores to others
            if self._bytes_put - self._bytes_done + nbytes > self._ring.nbytes:
                self._write_all()
            self._append(_Piece(copied, nbytes, Label(place, copied.spec, origin)))
        return nbytes

    def drain(self) -> None:
        """Write all that waits; then the writer may be used from this thread, until something is put again."""
        self._write_all(log=True)

    # --- where the model is, which should not be kept: no lock is taken where none must be

    def _put_by_copy(self, label: Label, seen: Array) -> None:
        begins: Label | None = label
        for part in pieces(seen, self._largest) if seen.nbytes > self._largest else (seen,):
            nbytes = part.nbytes
            if (found := self._ring.take(nbytes)) is None:
                found = self._room(nbytes)
            # By numpy: torch would share a small copy out among threads that the model is using.
            np.copyto(np.ndarray(part.shape, part.dtype, self._ring.memory, self._ring.at(found)), part)
            self._append(_Piece(found, nbytes, begins))
            begins = None

    def _room(self, nbytes: int) -> int:
        """A place in the ring, made by writing all that is in it."""
        while (found := self._ring.take(nbytes)) is None:
            self._write_all()
            self._ring.clear()  # something may have been taken and, being interrupted, never put
        return found

    def _append(self, piece: _Piece) -> None:
        self._raise()
        self._waiting.append(piece)
        self._bytes_put += piece.nbytes
        waiting = self._bytes_put - self._bytes_done
        if waiting > self.most_bytes:
            self.most_bytes = waiting
        if waiting >= self._enough:
            if not self._beside:
                self._write_all()
            elif not self._due.is_set():
                self._due.set()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    # --- wherever it is written; the writer is used only by who holds the lock

    def _work(self) -> None:
        """Look now and then. Two threads that wake each other for every tensor do little else."""
        is_over = False
        try:
            while not is_over:
                self._due.wait(_LOOK_S)
                self._due.clear()
                is_over = self._is_closing  # before all is written, so that nothing is left behind
                self._write_all(log=is_over)
        except BaseException as error:
            self._error = error  # raised where the model is

    def _write_all(self, last: tuple[Label, memoryview] | None = None, *, log: bool = False) -> None:
        """Write what waits, and behind it what lies elsewhere and may change as soon as this returns."""
        with self._writing:
            self._raise()
            try:
                while self._waiting or last:
                    batch = self._batch()
                    self._write(batch, None if self._waiting else last)
                    last = last if self._waiting else None
                    self._log()
                self._log(now=log)
            except BaseException as error:
                # Be it Ctrl-C: half of what was to be noted may be. Nothing more is written, what is whole can be read.
                self._error = error
                self._waiting.clear()
                self._writer.forget()
                raise

    def _log(self, *, now: bool = False) -> None:
        """Tell of what is written, a few times a second: Python that spells is Python that does not run the model."""
        if now or time.monotonic() >= self._log_s:
            self._writer.log()
            self._log_s = time.monotonic() + _LOOK_S

    def _batch(self) -> list[_Piece]:
        batch, nbytes = [], 0
        while self._waiting and nbytes < _MOST:
            batch.append(self._waiting.popleft())
            nbytes += batch[-1].nbytes
        return batch

    def _write(self, batch: list[_Piece], last: tuple[Label, memoryview] | None) -> None:
        for held, nbytes, begins in batch:
            if begins is not None:
                self._writer.begin(*begins)
            self._writer.extend(self._ring.bytes_of(held, nbytes) if isinstance(held, int) else raw(held.array()))
        if last is not None:
            self._writer.begin(*last[0])
            self._writer.extend(last[1])
        self._writer.flush()
        for held, nbytes, _ in batch:
            self._bytes_done += nbytes
            if isinstance(held, int):
                self._ring.give_back(held, nbytes)


def has_spare_core() -> bool:
    """Whether torch computes with fewer threads than there are cores for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(torch.get_num_threads()) < cores
