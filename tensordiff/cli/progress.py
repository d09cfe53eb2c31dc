"""A progress line on stderr: shown only on a terminal, rewritten in place, and cleared before data is printed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Self, TypeVar

from tensordiff.util.text_width import columns, cut_end, cut_middle, pad

T = TypeVar("T")
_EVERY_S = 0.1
_PATIENCE_S = 0.5  # nothing is shown for work that is done sooner
_TICK_S = 1.0
_BAR, _WIDE, _USUAL = 20, 48, 80


def _terminal_columns() -> int:
    """The current width of the terminal of stderr."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or _USUAL
    except (OSError, ValueError):  # it is gone, or does not tell
        return _USUAL


class Line:
    """A line that is rewritten in place and leaves nothing behind."""

    def __init__(self, patience_s: float = 0.0) -> None:
        self.is_shown = sys.stderr is not None and sys.stderr.isatty()
        self.is_drawn = False
        self.next_draw = time.monotonic() + patience_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    @property
    def is_due(self) -> bool:
        """Whether the line is shown, and was not drawn just now."""
        return self.is_shown and time.monotonic() >= self.next_draw

    def draw(self, text: str) -> None:
        """Replace the text of the line. It is cut to the terminal's width: a second line would stay behind."""
        self.next_draw = time.monotonic() + _EVERY_S
        room = _terminal_columns() - 1
        whole = f"{text} (Ctrl-C stops)"
        sys.stderr.write(f"\r{whole if columns(whole) <= room else cut_end(text, room)}\x1b[K")
        sys.stderr.flush()
        self.is_drawn = True

    def clear(self) -> None:
        """Clear the line, so that data can be printed."""
        if self.is_drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self.is_drawn = False


class Progress(Line):
    """Counts items of a known number."""

    def __init__(self, label: str, total: int) -> None:
        super().__init__(_PATIENCE_S)
        self.label, self.total, self.done = label, total, 0

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """Count items as they come."""
        for item in items:
            self.done += 1
            if self.is_due:
                self.draw(f"{self.label} {self.done}/{self.total} {_bar(self.done, self.total)}")
            yield item


class Bar(Line):
    """Shows what a child process does, and for how long. The seconds count on while the child reports nothing."""

    def __init__(self, label: str = "") -> None:
        super().__init__()
        self.label = f"{label}: " if label else ""
        self.began = time.monotonic()
        self._told = "starting"
        self._lock = Lock()
        """Held while writing to the terminal, by the ticking thread or by a sentence that replaces the line."""
        self._is_over = Event()

    def __enter__(self) -> Self:
        if self.is_shown:
            Thread(target=self._tick, name="progress", daemon=True).start()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        with self._lock:
            super().__exit__(kind, error, trace)

    def show(self, what: str, done: int, total: int) -> None:
        """Show what is being done, and how far it is, unless ``total`` is 0."""
        with self._lock:
            self._told = _described(what, done, total)
            if self.is_due or (self.is_shown and not total):
                self._draw()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the line while something else is written."""
        with self._lock:
            was_drawn = self.is_drawn
            self.clear()
            yield
            if was_drawn:
                self._draw()

    def _draw(self) -> None:
        self.draw(f"{self.label}{time.monotonic() - self.began:.0f} s {self._told}")

    def _tick(self) -> None:
        while not self._is_over.wait(_TICK_S):
            with self._lock:
                if self._is_over.is_set():
                    return
                try:
                    self._draw()
                except (OSError, ValueError):  # the terminal is gone; whatever follows the run finds out as well
                    return


def _described(what: str, done: int, total: int) -> str:
    if not total:
        return cut_middle(what, _WIDE)
    return f"{_bar(done, total)} {done}/{total} {pad(cut_middle(what, _WIDE), _WIDE)}"


def _bar(done: int, total: int) -> str:
    filled = _BAR * min(done, total) // max(total, 1)
    return f"{'━' * filled}{'─' * (_BAR - filled)}"
