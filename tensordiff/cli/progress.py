"""Progress on stderr, when a person is watching, and never in the way of data."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")
_EVERY_S = 0.1
_PATIENCE_S = 0.5  # nothing is shown for work that is over before anyone wonders


class Progress:
    """A line that is rewritten in place and leaves nothing behind."""

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total, self.done = label, total, 0
        self.is_shown = sys.stderr.isatty()
        self.is_drawn = False
        self.next_draw = time.monotonic() + _PATIENCE_S

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """Count items as they come."""
        for item in items:
            self.done += 1
            self._draw()
            yield item

    def _draw(self) -> None:
        if not self.is_shown or time.monotonic() < self.next_draw:
            return
        self.next_draw = time.monotonic() + _EVERY_S
        filled = 20 * self.done // max(self.total, 1)
        sys.stderr.write(
            f"\r{self.label} {self.done}/{self.total} {'━' * filled}{'─' * (20 - filled)} (Ctrl-C stops)\x1b[K"
        )
        sys.stderr.flush()
        self.is_drawn = True

    def clear(self) -> None:
        """Wipe the line, so that data can be written."""
        if self.is_drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self.is_drawn = False
