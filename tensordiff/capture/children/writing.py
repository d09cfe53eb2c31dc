"""Writing while the model runs: a thread that takes copies and puts them into the dump.

What waits is bounded in bytes: a model that is quicker than the disk is held up, memory does not grow. What goes
wrong in the thread is raised where the next tensor is handed over, or at the end.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

from tensordiff.capture.children.tensors import Buffers, Copied
from tensordiff.dump.writer import DumpWriter

WAITING = 64 << 20
"""Bytes that may wait to be written."""

_LOOK_S = 0.005


class _Item(NamedTuple):
    name: str
    copied: Copied
    about: Mapping[str, Any]


class BackgroundWriter:
    """A dump writer in a thread of its own. The ``DumpWriter`` must be open, and is not closed here."""

    def __init__(self, writer: DumpWriter, waiting: int = WAITING) -> None:
        self._writer, self._most = writer, waiting
        self._items: deque[_Item] = deque()
        self.buffers = Buffers(waiting)
        """Where copies should lie: what is written is used again."""
        self._bytes = 0
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._closing = False
        self.most_bytes = 0
        """The most that ever waited."""
        self.written = 0
        """Tensors handed over to the disk so far."""
        self._thread = threading.Thread(target=self._work, name="tensordiff-writer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what still waits, even where the model raised: it ran that far."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        if self._error is not None and kind is None:
            raise self._error

    def put(self, name: str, copied: Copied, **about: Any) -> None:
        """Hand over a copy; waits while too much waits already."""
        with self._changed:
            while self._items and self._bytes + copied.nbytes > self._most and self._error is None:
                self._changed.wait()
            if self._error is not None:
                raise self._error
            self._items.append(_Item(name, copied, about))
            self._bytes += copied.nbytes
            self.most_bytes = max(self.most_bytes, self._bytes)

    def drain(self) -> None:
        """Wait until all is written; then the writer may be used from this thread, until something is put again."""
        with self._changed:
            while self._items and self._error is None:
                self._changed.wait()
            if self._error is not None:
                raise self._error

    def _work(self) -> None:
        while (item := self._next()) is not None:
            try:
                self._writer.add(item.name, item.copied.array(), **item.about)
            except BaseException as error:  # raised again where the model's thread is
                with self._changed:
                    self._error = error
                    self._items.clear()
                    self._changed.notify_all()
                return
            self.buffers.give_back(item.copied)
            self._finished(item)

    def _next(self) -> _Item | None:
        """The next to be written; None when there will be no more.

        It looks every few milliseconds rather than be woken by every tensor: two threads that wake each other all
        the time do little else.
        """
        with self._changed:
            while not self._items and not self._closing:
                self._changed.wait(_LOOK_S)
            return self._items[0] if self._items else None

    def _finished(self, item: _Item) -> None:
        with self._changed:
            self._items.popleft()
            self._bytes -= item.copied.nbytes
            self.written += 1
            self._changed.notify_all()
