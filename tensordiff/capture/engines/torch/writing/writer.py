"""Writes tensors while the model runs: copies wait in a ring of memory and are written many at a time.

Tensors on the host are copied into a ring of host memory, those on a GPU into one of pinned memory, which the GPU fills
while the model continues. The waiting bytes are bounded: a model that is faster than the disk is slowed down, and
memory does not grow. A tensor of any size passes through, in pieces.

Which thread writes depends on the cores. If one is idle, a thread writes alongside the model. If the model uses all
cores, such a thread would cost more than it gains, since all of the model's threads wait for the one it displaces; then
the caller writes, and a large tensor is written from its own memory, without a copy. In both cases the thread ensures
that nothing waits for long. Its errors are raised when the next tensor is put, or at the end.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from tensordiff.capture.engines.torch.tensors import as_array, resolved, spec_of
from tensordiff.capture.engines.torch.writing.ring import PinnedRing, Ring, tensor_pieces
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import EntryKey, Origin, Spec
from tensordiff.dump.native.shards import PIECE, pieces, raw
from tensordiff.dump.native.writer import DumpWriter
from tensordiff.errors import CaptureError

WAITING = 64 << 20
"""Bytes that may wait to be written."""

_ENOUGH = 1 << 20  # bytes that are worth a system call
_MOST = 8 << 20  # bytes, approximately, that are written before their memory is freed
_LARGE = 1 << 19  # bytes of a tensor that are worth a system call of their own if that saves the copy
_LOOK_S = 0.1  # the longest that fewer bytes wait to be written and journaled: a run may be killed


class EntryHeader(NamedTuple):
    """The entry of a tensor in a dump, without its values."""

    place: EntryKey
    spec: Spec
    origin: Origin


class _Piece(NamedTuple):
    """Bytes that wait to be written."""

    ring: Ring
    place: int
    nbytes: int
    begins: EntryHeader | None
    """The entry that begins with these bytes, if one does."""
    ready: Any = None
    """The event to wait for, if a GPU may still be writing there."""


class BackgroundWriter:
    """A dump writer with a thread of its own. The ``DumpWriter`` must be open, and is not closed here."""

    def __init__(self, writer: DumpWriter, waiting: int = WAITING, *, beside: bool | None = None) -> None:
        """``beside`` is whether the thread writes alongside the model; by default, if a core is idle."""
        self._writer, self._ring = writer, Ring(waiting)
        self._pinned: PinnedRing | None = None
        self._can_pin = True
        self._beside = has_spare_core() if beside is None else beside
        self._enough, self._largest = min(_ENOUGH, self._ring.nbytes // 2), min(PIECE, self._ring.nbytes)
        self._waiting: deque[_Piece] = deque()
        self._bytes_put = self._bytes_done = 0
        self._putting, self._writing, self._due = threading.Lock(), threading.Lock(), threading.Event()
        self._is_closing, self._log_s = False, time.monotonic() + _LOOK_S
        self._error: BaseException | None = None
        self.most_bytes = 0
        """The most bytes that ever waited."""
        self._thread = threading.Thread(target=self._work, name="tensordiff-writer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what still waits, even if the model raised: it ran that far."""
        self.close()
        self._thread.join()
        self._pinned = None  # nothing else can use such memory
        if self._error is not None and kind is None:
            raise self._error

    def close(self) -> None:
        """Announce that nothing more will be put: what waits is written at once, while the caller does other things."""
        self._is_closing = True
        self._due.set()

    def put(self, place: EntryKey, origin: Origin, tensor: Tensor) -> int:
        """Have a tensor written as it is now; returns its size. Blocks while too much is waiting."""
        plain = resolved(tensor)
        if not plain.is_cpu:
            return self._put_from_device(place, origin, plain)
        array = as_array(plain)
        with self._putting:
            label = EntryHeader(place, Spec(array.shape, array.dtype), origin)
            if not self._beside and array.nbytes >= _LARGE and array.flags.c_contiguous:
                self._write_all((label, raw(array)))
            else:
                self._put_by_copy(label, array)
        return array.nbytes

    def drain(self) -> None:
        """Write everything that waits; then this thread may use the writer, until something is put again."""
        self._write_all(log=True)

    # --- in the thread of the model, which must not be delayed: no lock is taken without need

    def _put_by_copy(self, label: EntryHeader, array: Array) -> None:
        begins: EntryHeader | None = label
        for part in pieces(array, self._largest) if array.nbytes > self._largest else (array,):
            nbytes = part.nbytes
            if (found := self._ring.take(nbytes)) is None:
                found = self._room(self._ring, nbytes)
            # By numpy: torch would split a small copy among threads that the model is using.
            np.copyto(np.ndarray(part.shape, part.dtype, self._ring.memory, self._ring.at(found)), part)
            self._append(_Piece(self._ring, found, nbytes, begins))
            begins = None

    def _put_from_device(self, place: EntryKey, origin: Origin, tensor: Tensor) -> int:
        """Put a tensor of a device in pieces: neither the host nor the device holds a second whole one."""
        spec = spec_of(tensor)
        if spec is None:
            raise CaptureError(f"tensors of type {tensor.dtype} are not written")
        begins: EntryHeader | None = EntryHeader(place, spec, origin)
        with self._putting:
            self._beside = True  # a device computes and leaves the cores idle
            for part in tensor_pieces(tensor, self._largest):
                self._append(self._copied(part, begins))
                begins = None
        return int(tensor.nbytes)

    def _copied(self, part: Tensor, begins: EntryHeader | None) -> _Piece:
        ring = self._pinned_ring() if part.is_cuda else None
        if ring is None:  # wait for the copy
            found = self._room(self._ring, part.nbytes)
            array = as_array(part.cpu().contiguous())
            np.copyto(np.ndarray(array.shape, array.dtype, self._ring.memory, self._ring.at(found)), array)
            return _Piece(self._ring, found, part.nbytes, begins)
        found = self._room(ring, part.nbytes)
        return _Piece(ring, found, part.nbytes, begins, ring.copy(found, part))

    def _pinned_ring(self) -> PinnedRing | None:
        """The ring that GPUs write to; None if the system has no memory to pin."""
        if self._pinned is None and self._can_pin:
            try:
                self._pinned = PinnedRing(self._ring.nbytes)
            except RuntimeError:  # if a kernel failed instead, the waiting copy will raise
                self._can_pin = False
        return self._pinned

    def _room(self, ring: Ring, nbytes: int) -> int:
        """A place in a ring; if there is none, everything that waits is written first."""
        while (found := ring.take(nbytes)) is None:
            self._write_all()
            ring.clear()  # a place may have been taken and, after an interrupt, never used
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

    # --- in any thread; only the holder of the lock uses the writer

    def _work(self) -> None:
        """Write now and then. Two threads that wake each other for every tensor would do little else."""
        is_over = False
        try:
            while not is_over:
                self._due.wait(_LOOK_S)
                self._due.clear()
                is_over = self._is_closing  # read before writing, so that nothing is left behind
                self._write_all(log=is_over)
        except BaseException as error:
            self._error = error  # raised in the model's thread

    def _write_all(self, last: tuple[EntryHeader, memoryview] | None = None, *, log: bool = False) -> None:
        """Write what waits, and after it ``last``, whose memory may change as soon as this returns."""
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
                # After any error, even Ctrl-C, an entry may be half noted. Nothing more is written; complete entries
                # can be read.
                self._error = error
                self._waiting.clear()
                self._writer.forget()
                raise

    def _log(self, *, now: bool = False) -> None:
        """Journal what is written, a few times a second: encoding it takes time from the model."""
        if now or time.monotonic() >= self._log_s:
            self._writer.log()
            self._log_s = time.monotonic() + _LOOK_S

    def _batch(self) -> list[_Piece]:
        batch, nbytes = [], 0
        while self._waiting and nbytes < _MOST:
            batch.append(self._waiting.popleft())
            nbytes += batch[-1].nbytes
        return batch

    def _write(self, batch: list[_Piece], last: tuple[EntryHeader, memoryview] | None) -> None:
        for piece in batch:
            if piece.begins is not None:
                self._writer.begin(*piece.begins)
            if piece.ready is not None:
                piece.ready.synchronize()
            self._writer.extend(piece.ring.bytes_of(piece.place, piece.nbytes))
        if last is not None:
            self._writer.begin(*last[0])
            self._writer.extend(last[1])
        self._writer.flush()
        for piece in batch:
            self._bytes_done += piece.nbytes
            piece.ring.give_back(piece.place, piece.nbytes)


def has_spare_core() -> bool:
    """Whether torch computes with fewer threads than there are cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(torch.get_num_threads()) < cores
