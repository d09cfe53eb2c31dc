"""The histogram of errors: a bar for each log-spaced bin; equal, NaN and infinite elements are counted separately."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

from tensordiff.compare.look.elements import Histogram, histogram
from tensordiff.tui.layer.pane import Line, Pane
from tensordiff.tui.layer.subject import Subject
from tensordiff.util.sizes import format_percent_of

_PARTS = " ▏▎▍▌▋▊▉█"
_SCALES = (10, 5, 2, 1)
_FIXED = 38


class HistogramPane(Pane[Histogram]):
    """Bars by size of error."""

    can: ClassVar[frozenset[str]] = frozenset({"log", "move", "page"})

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.is_log, self.top = False, 0

    def begin(self) -> None:
        """Go back to the top."""
        self.top = 0

    def answers(self, subject: Subject, _question: None) -> Iterator[Histogram]:
        """Count the errors."""
        return histogram(*subject.sides)

    def toggle_log(self) -> None:
        """Switch between a log and a linear scale."""
        self.is_log = not self.is_log
        self.repaint()

    def move(self, _x: int, y: int) -> None:
        """Scroll, if there are more bins than lines."""
        self.top = max(0, self.top + y)
        self.repaint()

    def page(self, _x: int, y: int) -> None:
        """Scroll by a screenful."""
        self.move(0, y * max(1, self.content_size.height - 6))

    def draw(self, answer: Histogram) -> Sequence[Line]:
        """The number of elements in each bin, from the largest errors down."""
        width, height = self.content_size
        room = max(1, height - 5)
        shown = _fitting(answer, room)
        total = sum(answer.counts) + answer.zero + answer.nan + answer.inf
        bins = list(enumerate(shown.counts, shown.first))[::-1]
        self.top = max(0, min(self.top, len(bins) - room))
        lines: list[Line] = [self._title(total, len(bins) - room), self._head()]
        lines += [self._bar(shown, k, count, total, width) for k, count in bins[self.top : self.top + room]]
        if not bins:
            lines.append([("  no element differs by a finite amount", "muted")])
        return [*lines, [], *_apart(answer, total)]

    def _title(self, total: int, hidden: int) -> Line:
        more = f"  ↓↑ {hidden} more bins" if hidden > 0 else ""
        bars = "log scale" if self.is_log else "linear"
        return [(f"|Δ| of {total:,} elements", "title"), (f"  bars {bars}{more}", "muted")]

    def _head(self) -> Line:
        return [(f"{'from':>9} {'to':>9} {'elements':>12} {'share':>6}", "muted")]

    def _bar(self, shown: Histogram, k: int, count: int, total: int, width: int) -> Line:
        most = max(shown.counts)
        share = _log_share(count, most) if self.is_log else count / most
        edges = f"{shown.edge(k):>9.1e} {shown.edge(k + 1):>9.1e}"
        return [
            (edges, ""),
            (f" {count:>12,} {format_percent_of(count, total):>6} ", "muted" if not count else ""),
            (_filled(share, max(1, width - _FIXED - 2), count), "bar"),
        ]


def _fitting(answer: Histogram, room: int) -> Histogram:
    """As many bins a decade as there are lines for."""
    merged = [answer.merged(per_decade) for per_decade in _SCALES]
    return next((found for found in merged if len(found.counts) <= room), merged[-1])


def _log_share(count: int, most: int) -> float:
    return math.log1p(count) / math.log1p(most)


def _filled(share: float, width: int, count: int) -> str:
    """A bar with the precision of an eighth of a character; never empty for a nonzero count."""
    eighths = max(round(share * width * 8), 1 if count else 0)
    return "█" * (eighths // 8) + _PARTS[eighths % 8].strip()


def _apart(answer: Histogram, total: int) -> list[Line]:
    """The elements that are in no bin."""
    equal = (f"equal {answer.zero:,} ({format_percent_of(answer.zero, total)})", "")
    nan = (f"   NaN on one side {answer.nan:,}", "diverges" if answer.nan else "muted")
    inf = (f"   infinitely apart {answer.inf:,}", "diverges" if answer.inf else "muted")
    return [[equal, nan, inf]]
