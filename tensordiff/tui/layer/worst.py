"""The worst elements: where they are, the values of both sides there, and their difference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

from rich.cells import cell_len

from tensordiff.compare.look.elements import Element, worst_elements
from tensordiff.dump.dtypes import Array
from tensordiff.report.labels import number
from tensordiff.tui.layer.pane import Line, ListPane
from tensordiff.tui.layer.subject import Subject
from tensordiff.util.text_width import cut_end

SHOWN = 100
_PART = 1 << 20
"""Elements that are searched before the user can leave: some tenths of a second."""
_NARROWEST, _WIDEST = 12, 16
_FIXED = 28
"""The width of a line without the index and the two values."""


class Worst(NamedTuple):
    """The worst elements, and the axes of their tensor."""

    elements: tuple[Element, ...]
    names: tuple[str, ...]
    total: int


class WorstPane(ListPane[Worst]):
    """One element a line."""

    can: ClassVar[frozenset[str]] = frozenset({"move", "page", "open"})

    def answers(self, subject: Subject, _question: None) -> Iterator[Worst]:
        """Find them, part by part, so that leaving does not wait for the rest."""
        ref, cand = subject.sides
        for found in _worst_so_far(ref, cand):
            yield Worst(found, subject.form.names, ref.size)

    def heading(self, answer: Worst) -> Sequence[Line]:
        """The number of elements, and the headings of the columns."""
        count = len(answer.elements)
        if not count:
            return [[("no element differs", "title")]]
        title = f"the {count} worst of {answer.total:,} elements"
        place, value = self._widths(answer)
        names = cut_end(f"[{', '.join(answer.names)}]", place, cell_len)
        columns = f"{'#':>4}  {names:<{place}} {'reference':>{value}} {'candidate':>{value}}"
        return [
            [(title, "title"), ("  enter: see it among its neighbours", "muted")],
            [(f"{columns} {'|Δ|':>9} {'relΔ':>9}", "muted")],
        ]

    def body(self, answer: Worst) -> Sequence[Line]:
        """One line for each element."""
        widths = self._widths(answer)
        return [_line(rank, element, *widths) for rank, element in enumerate(answer.elements, 1)]

    def _widths(self, answer: Worst) -> tuple[int, int]:
        """The widths of an index and of a value, with all digits if there is room."""
        indexes = (len(str(list(element.index))) for element in answer.elements)
        left = self.content_size.width - _FIXED
        longest = max(indexes, default=1)
        place = max(longest, min(len(f"[{', '.join(answer.names)}]"), left - 2 * _WIDEST))
        return place, max(_NARROWEST, min(_WIDEST, (left - place) // 2))

    def stops(self, answer: Worst) -> Sequence[int]:
        """Every line."""
        return range(len(answer.elements))

    def open(self) -> None:
        """Show the element among its neighbours."""
        if self.answer is not None and self.answer.elements:
            self.post_message(self.Pointed(self.answer.elements[self.at].index))


def _worst_so_far(ref: Array, cand: Array) -> Iterator[tuple[Element, ...]]:
    """The worst elements of the rows that were read so far; a scalar has no rows."""
    if not ref.ndim:
        yield tuple(worst_elements(ref, cand, SHOWN))
        return
    found: tuple[Element, ...] = ()
    rows = max(1, _PART * len(ref) // ref.size)
    for first in range(0, len(ref), rows):
        part = worst_elements(ref[first : first + rows], cand[first : first + rows], SHOWN)
        moved = (replace(one, index=(one.index[0] + first, *one.index[1:])) for one in part)
        found = tuple(sorted((*found, *moved), key=_rank)[:SHOWN])
        yield found


def _rank(element: Element) -> tuple[float, tuple[int, ...]]:
    """The sort key: NaN is larger than anything, and the first of equal elements comes first."""
    return (-math.inf if math.isnan(element.error) else -element.error), element.index


def _line(rank: int, element: Element, place: int, value: int) -> Line:
    index, digits = str(list(element.index)), value - 7
    values = f"{element.reference:>{value}.{digits}g} {element.candidate:>{value}.{digits}g}"
    return [
        (f"{rank:>4}  ", "muted"),
        (f"{index:<{place}} {values} {number(element.error):>9} {number(element.relative):>9}", ""),
    ]
