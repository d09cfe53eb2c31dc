"""The values themselves: both sides of a slice beside each other, or one of four quantities over two axes.

Only what is visible, and a screenful around it, is ever read. Integers are shown with all their digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from textual import events

from tensordiff.compare.look.axes import NamedShape
from tensordiff.compare.look.elements import Window, window
from tensordiff.dump.dtypes import Array
from tensordiff.tui.layer.pane import Line, Pane, Piece
from tensordiff.tui.layer.subject import Subject
from tensordiff.tui.text import right

MODES = ("A B Δ relΔ", "A", "B", "Δ", "relΔ")
"""All four quantities of one slice, or one of them over two axes."""
_NAMES = {"A": "reference", "B": "candidate", "Δ": "Δ = candidate - reference", "relΔ": "|Δ| / |reference|"}
_GUTTER, _CELL, _AROUND = 9, 13, 4


class Spot(NamedTuple):
    """A place in the tensor, and the part to read around it."""

    place: tuple[int, ...]
    down: int | None
    across: int | None
    rows: tuple[int, int]
    columns: tuple[int, int]


class Values(NamedTuple):
    """What was read around a spot."""

    form: NamedShape
    spot: Spot
    window: Window


class ValuesPane(Pane[Values]):
    """A grid of values."""

    can: ClassVar[frozenset[str]] = frozenset({"side", "axis", "move", "page", "slice", "go"})

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.mode, self.axis = 0, -1
        self.shape: tuple[int, ...] = ()
        self.index: tuple[int, ...] = ()
        self.top = self.left = 0
        self._centred = False
        self.takes_key: Callable[[events.Key], bool] = lambda _key: False
        """Whether the screen takes a key as part of an index that is being typed."""

    def begin(self) -> None:
        """Begin at the largest error, where there is most to see."""
        diff = self.subject.row.diff if self.subject else None
        self.shape, self.top, self.left = (diff.shape or (1,)) if diff else (), 0, 0
        self.index = (diff.max_abs_place or (0,)) if diff and diff.elements else (0,) * len(self.shape)
        self._centred = False
        self._see_cursor()

    # --- axes ------------------------------------------------------------------------------------

    @property
    def is_grid(self) -> bool:
        """Whether one quantity is shown over two axes."""
        return self.mode > 0

    @property
    def _axes(self) -> list[int]:
        """The axes that are longer than 1."""
        return [axis for axis, size in enumerate(self.shape) if size > 1] or list(range(len(self.shape)))[-1:]

    @property
    def _down_across(self) -> tuple[int | None, int | None]:
        """The axes down and across the screen; in a list of one slice, the chosen axis is down."""
        axes = self._axes
        if not axes:
            return None, None
        at = self.axis % len(axes)
        chosen, other = axes[at], axes[at - 1] if len(axes) > 1 else None
        return (other, chosen) if self.is_grid else (chosen, other)

    @property
    def _room(self) -> tuple[int, int]:
        width, height = self.content_size
        return max(1, height - _AROUND), max(1, (width - _GUTTER) // _CELL) if self.is_grid else 1

    def question(self) -> Spot:
        """What is visible, and a screenful around it."""
        down, across = self._down_across
        rows, columns = self._room
        top, left = self.top - self.top % max(1, rows), self.left - self.left % max(1, columns)
        index = tuple(0 if axis in (down, across) else at for axis, at in enumerate(self.index))
        if not self.is_grid and across is not None:
            left = self.index[across]
            return Spot(index, down, across, self._span(down, top - rows, top + 3 * rows), (left, left + 1))
        spans = self._span(down, top - rows, top + 3 * rows), self._span(across, left - columns, left + 3 * columns)
        return Spot(index, down, across, *spans)

    def _span(self, axis: int | None, begin: int, end: int) -> tuple[int, int]:
        return (0, 1) if axis is None else (max(0, begin), min(self.shape[axis], end))

    def answers(self, subject: Subject, question: Spot) -> Iterator[Values]:
        """Read that part."""
        form = subject.form if subject.form.shape else NamedShape(("scalar",), (1,))
        ref, cand = (side.reshape(form.shape) for side in subject.sides)
        rows, columns = slice(*question.rows), slice(*question.columns)
        down, across = question.down, question.across
        if down is None:
            found = Window(*(side.T for side in window(ref, cand, question.place, across or 0, None, columns, rows)))
        else:
            found = window(ref, cand, question.place, down, across, rows, columns)
        yield Values(form, question, found)

    # --- what can be done ------------------------------------------------------------------------

    def next_axis(self) -> None:
        """Show another axis down, or across."""
        self.axis = (self.axis - 1) % max(1, len(self._axes))
        self._moved()

    def next_side(self) -> None:
        """Show all four quantities, reference, candidate, difference or relative difference."""
        self.mode = (self.mode + 1) % len(MODES)
        self._moved()

    def move(self, x: int, y: int) -> None:
        """Move along the axes that are drawn down or across."""
        down, across = self._down_across
        self._step(down, y)
        self._step(across, x)
        self._moved()

    def page(self, x: int, y: int) -> None:
        """Move by a screenful."""
        rows, columns = self._room
        self.move(x * columns, y * rows)

    def next_slice(self, by: int) -> None:
        """Go to another index of the axis before those shown."""
        others = [axis for axis in self._axes if axis not in self._down_across]
        self._step(others[-1] if others else self._down_across[1], by)
        self._moved()

    def go(self, index: tuple[int, ...]) -> None:
        """Go to an element."""
        self.index = tuple(max(0, min(at, size - 1)) for at, size in zip(index, self.shape, strict=True))
        self._centred = False
        self._moved()

    def on_key(self, event: events.Key) -> None:
        """Take a digit, which begins an index, and the keys of the same burst after it."""
        if self.takes_key(event):
            event.stop()
            event.prevent_default()

    def _step(self, axis: int | None, by: int) -> None:
        if axis is not None:
            at = max(0, min(self.index[axis] + by, self.shape[axis] - 1))
            self.index = (*self.index[:axis], at, *self.index[axis + 1 :])

    def _moved(self) -> None:
        self._see_cursor()
        self.ask()
        self.repaint()

    def _see_cursor(self) -> None:
        """Scroll as little as possible to the cursor; after a jump, put it in the middle."""
        (down, across), (rows, columns) = self._down_across, self._room
        self.top, self.left = self._scrolled(down, self.top, rows), self._scrolled(across, self.left, columns)
        self._centred = self._centred or bool(self.content_size)

    def _scrolled(self, axis: int | None, first: int, room: int) -> int:
        if axis is None:
            return 0
        at = self.index[axis]
        first = max(at - room + 1, min(first, at)) if self._centred else at - room // 2
        return max(0, min(first, self.shape[axis] - room))

    def on_resize(self) -> None:
        """Keep the cursor visible."""
        if self.shape:
            self._see_cursor()
        super().on_resize()

    def point(self, x: int, y: int) -> None:
        """Go to the element under the mouse."""
        down, across = self._down_across
        column = self.left + (x - _GUTTER) // _CELL if self.is_grid else self.left
        wanted = {down: self.top + y - 2, across: column}
        self.go(tuple(wanted.get(axis, at) for axis, at in enumerate(self.index)))

    # --- drawing ---------------------------------------------------------------------------------

    def draw(self, answer: Values) -> Sequence[Line]:
        """A title, headings, the values, and the element under the cursor."""
        rows, columns = self._room
        body = self._grid(answer, rows, columns) if self.is_grid else self._list(answer, rows)
        return [self._title(answer.form), *body, [], self._read_out(answer)]

    def _title(self, form: NamedShape) -> Line:
        down, across = self._down_across
        inside = [axis for axis in (down, across) if axis is not None] if self.is_grid else [down]
        shown = ", ".join(":" if axis in inside else str(at) for axis, at in enumerate(self.index))
        names = " × ".join(form.names[axis] for axis in inside if axis is not None)
        what = _NAMES.get(MODES[self.mode], "")
        return [(f"[{shown}]", "title"), (f"  {'over' if self.is_grid else 'along'} {names}  {what}", "muted")]

    def _list(self, answer: Values, rows: int) -> list[Line]:
        wide = max(_CELL, min(21, (self.content_size.width - _GUTTER) // 4 - 1))
        heads = ("reference", "candidate", "Δ", "relΔ")
        lines: list[Line] = [[(" " * _GUTTER + "".join(f"{head:>{wide}} " for head in heads), "muted")]]
        down, _ = self._down_across
        for at in range(self.top, min(self.top + rows, 1 if down is None else self.shape[down])):
            here = down is None or at == self.index[down]
            cells = [_text(side, self._in(answer, at, self.left), wide) for side in answer.window]
            apart = self._difference(answer, at, self.left)
            line: list[Piece] = [(f"{at:>{_GUTTER - 1}} ", "cursor" if here else "muted")]
            line += [(f"{right(cell, wide)} ", "cursor" if here else "") for cell in cells[:2]]
            line += [(f"{right(cell, wide)} ", "cursor" if here else _how(apart)) for cell in cells[2:]]
            lines.append(line)
        return lines

    def _grid(self, answer: Values, rows: int, columns: int) -> list[Line]:
        side = answer.window[self.mode - 1]
        down, across = self._down_across
        shown = range(self.left, min(self.left + columns, 1 if across is None else self.shape[across]))
        lines: list[Line] = [[(" " * _GUTTER + "".join(f"{at:>{_CELL - 1}} " for at in shown), "muted")]]
        for row in range(self.top, min(self.top + rows, 1 if down is None else self.shape[down])):
            line: list[Piece] = [(f"{row:>{_GUTTER - 1}} ", "muted")]
            for column in shown:
                here = self._is_here(row, column)
                how = _how(self._difference(answer, row, column)) if self.mode > 2 else ""
                text = _text(side, self._in(answer, row, column), _CELL - 1)
                line += [(right(text, _CELL - 1), "cursor" if here else how), (" ", "")]
            lines.append(line)
        return lines

    def _is_here(self, row: int, column: int) -> bool:
        down, across = self._down_across
        return (down is None or self.index[down] == row) and (across is None or self.index[across] == column)

    def _in(self, answer: Values, row: int, column: int) -> tuple[int, int] | None:
        """The position of an element in what was read; None if it was not."""
        spot, now = answer.spot, self.question()
        if (spot.down, spot.across, spot.place) != (now.down, now.across, now.place):
            return None
        at = row - spot.rows[0], column - spot.columns[0] if spot.across is not None else 0
        inside = 0 <= at[0] < answer.window.reference.shape[0] and 0 <= at[1] < answer.window.reference.shape[1]
        return at if inside else None

    def _difference(self, answer: Values, row: int, column: int) -> float:
        at = self._in(answer, row, column)
        return 0.0 if at is None else float(answer.window.difference[at])

    def _read_out(self, answer: Values) -> Line:
        down, across = self._down_across
        at = self._in(answer, 0 if down is None else self.index[down], 0 if across is None else self.index[across])
        place = "[" + ", ".join(map(str, self.index)) + "]"
        if at is None:
            return [(place, "title"), ("  reading…", "muted")]
        a, b, apart, relative = (_text(side, at, 40 if self.content_size.width > 90 else 13) for side in answer.window)
        return [
            (place, "title"),
            (f"  A {a}  B {b}  Δ {apart}  relΔ {relative}", _how(float(answer.window.difference[at]))),
        ]


def _text(side: Array, at: tuple[int, int] | None, width: int) -> str:
    """A value in at most ``width`` characters, with as many digits as fit and are meaningful."""
    if at is None:
        return "…"
    value = side[at]
    if side.dtype.kind in "iub":
        return str(value.item())
    digits = 9 if width >= 17 else 6 if width >= 13 else 5
    return f"{float(np.float64(value)):.{digits}g}"


def _how(apart: float) -> str:
    return "diverges" if not math.isfinite(apart) else "muted" if apart == 0 else ""
