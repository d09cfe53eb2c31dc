"""Writing while the model runs: tensors are copied into memory that is used again, and a thread writes them.

What waits is bounded in bytes: a model that is quicker than the disk is held up, memory does not grow. A tensor of
any size goes through, in pieces. The thread takes many tensors at a time, so that nearly all it does is done by the
system while the model's Python goes on. What goes wrong in the thread is raised where the next tensor is handed over,
or at the end.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
from torch import Tensor

from tensordiff.capture.children.ring import Ring
from tensordiff.capture.children.tensors import Copied, as_array, copy, resolved
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Origin, Spec
from tensordiff.dump.shards import PIECE, pieces, raw
from tensordiff.dump.writer import DumpWriter, Place

WAITING = 64 << 20
"""Bytes that may wait to be written."""

_ENOUGH = 4 << 20  # bytes that are worth waking the thread for
_MOST = 8 << 20  # bytes, or a little more, that it writes before it gives their memory back
_LOOK_S = 0.01  # how long fewer bytes wait to be written, and no longer: a run may be killed
_LOG_S = 0.1  # and how long what is written waits to be told of


class Label(NamedTuple):
    """What a dump says of a tensor beside its values."""

    place: Place
    spec: Spec
    origin: Origin


class _Piece(NamedTuple):
    """Bytes that wait to be written."""

    held: int | Copied
    """Their place in the ring; or what a device is still writing to."""
    nbytes: int
    begins: Label | None
    """The tensor of which they are the first."""


class BackgroundWriter:
    """A dump writer in a thread of its own. The ``DumpWriter`` must be open, and is not closed here."""

    def __init__(self, writer: DumpWriter, waiting: int = WAITING) -> None:
        self._writer, self._ring = writer, Ring(waiting)
        self._enough, self._largest = min(_ENOUGH, self._ring.nbytes // 2), min(PIECE, self._ring.nbytes)
        self._waiting: deque[_Piece] = deque()
        self._batch: list[_Piece] = []
        self._bytes_put = self._bytes_done = 0
        self._log_s = time.monotonic() + _LOG_S
        self._putting, self._changed = threading.Lock(), threading.Condition()
        self._asleep = self._awaited = self._draining = self._closing = self._untold = False
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
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def put(self, place: Place, origin: Origin, tensor: Tensor) -> int:
        """Copy a tensor as it is now, and have it written; gives its bytes. Waits while too much waits already."""
        plain = resolved(tensor)
        if not plain.is_cpu:
            return self.put_copied(place, origin, copy(plain))
        with self._putting:
            return self._put_here(place, origin, as_array(plain))

    def put_copied(self, place: Place, origin: Origin, copied: Copied) -> int:
        """Have a copy written that lies, or will lie, in memory of its own."""
        nbytes = copied.nbytes
        with self._putting:
            with self._changed:
                while not self._is_idle() and self._bytes_put - self._bytes_done + nbytes > self._ring.nbytes:
                    self._wait()
            self._append(_Piece(copied, nbytes, Label(place, copied.spec, origin)))
        return nbytes

    def drain(self) -> None:
        """Wait until all is written; then the writer may be used from this thread, until something is put again."""
        with self._changed:
            self._draining = True
            while not self._is_idle() or self._untold:
                self._wait()
            self._draining = False
            self._raise()

    # --- in the model's thread, which should not be kept: no lock is taken where none must be

    def _put_here(self, place: Place, origin: Origin, seen: Array) -> int:
        begins: Label | None = Label(place, Spec(seen.shape, seen.dtype), origin)
        for part in pieces(seen, self._largest) if seen.nbytes > self._largest else (seen,):
            nbytes = part.nbytes
            if (found := self._ring.take(nbytes)) is None:
                found = self._room(nbytes)
            # By numpy: torch would share a small copy out among threads that the model is using.
            np.copyto(np.ndarray(part.shape, part.dtype, self._ring.memory, self._ring.at(found)), part)
            self._append(_Piece(found, nbytes, begins))
            begins = None
        return seen.nbytes

    def _room(self, nbytes: int) -> int:
        """A place in the ring, as soon as there is one."""
        with self._changed:
            while (found := self._ring.take(nbytes)) is None:
                self._raise()
                if self._is_idle():
                    self._ring.clear()  # something was taken and, being interrupted, never put
                else:
                    self._wait()
            return found

    def _append(self, piece: _Piece) -> None:
        self._raise()
        self._waiting.append(piece)
        self._bytes_put += piece.nbytes
        waiting = self._bytes_put - self._bytes_done
        self.most_bytes = max(self.most_bytes, waiting)
        if waiting >= self._enough and self._asleep:
            with self._changed:
                self._changed.notify_all()

    def _wait(self) -> None:
        """Until the thread has written something."""
        self._raise()
        self._awaited = True
        self._changed.notify_all()
        self._changed.wait()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _is_idle(self) -> bool:
        return not self._waiting and not self._batch

    # --- in the thread that writes, which uses the writer only while something waits or is untold

    def _work(self) -> None:
        try:
            while (batch := self._next()) or self._untold or not self._closing:
                if batch:
                    self._write(batch)
                if self._untold and (self._closing or self._draining or time.monotonic() >= self._log_s):
                    self._log()
                self._finish(batch)
        except BaseException as error:  # raised again where the model's thread is
            with self._changed:
                self._error, self._batch, self._untold = error, [], False
                self._waiting.clear()
                self._changed.notify_all()

    def _next(self) -> list[_Piece]:
        """What is to be written now, soon enough or when there is enough; it may be nothing.

        The thread looks now and then rather than be woken by every tensor: two threads that wake each other all the
        time do little else.
        """
        with self._changed:
            self._asleep = True  # before it looks: what is put from now on wakes it
            if not self._is_due():
                self._changed.wait(_LOOK_S)
            self._asleep = self._awaited = False
            nbytes = 0
            while self._waiting and nbytes < _MOST:
                self._batch.append(self._waiting.popleft())
                nbytes += self._batch[-1].nbytes
            return self._batch

    def _is_due(self) -> bool:
        return self._closing or self._awaited or self._bytes_put - self._bytes_done >= self._enough

    def _write(self, batch: list[_Piece]) -> None:
        self._untold = True
        for held, nbytes, begins in batch:
            if begins is not None:
                self._writer.begin(*begins)
            self._writer.extend(self._ring.bytes_of(held, nbytes) if isinstance(held, int) else raw(held.array()))
        self._writer.flush()

    def _log(self) -> None:
        self._writer.log()
        self._untold, self._log_s = False, time.monotonic() + _LOG_S

    def _finish(self, batch: list[_Piece]) -> None:
        with self._changed:
            for held, nbytes, _ in batch:
                self._bytes_done += nbytes
                if isinstance(held, int):
                    self._ring.give_back(held, nbytes)
            self._batch = []
            self._changed.notify_all()
