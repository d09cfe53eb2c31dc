"""A heatmap as lines of characters: cells in colour, two in a character, or in shades, one in a character.

State is not kept here: what is drawn is a ``Picture``, and where the cursor stands is told.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.blocks import Floats
from tensordiff.tui.heat_view import Two
from tensordiff.tui.text import right
from tensordiff.tui.widgets.pane import Line, Piece
from tensordiff.tui.widgets.ramp import NOTHING, Ramp
from tensordiff.tui.widgets.scale import Scale

Places = NDArray[np.int64]
"""Of each cell, which colour it has."""
GUTTER = 7
SHADES = " ·░▒▓█"
_ODD, _ENDLESS, _CURSOR = "×", "∞", "┼"
_WIDEST, _TALLEST = 6, 3
_APART = 8
"""Characters from one column number to the next, at least."""


class Picture(NamedTuple):
    """What is drawn."""

    cells: Floats
    scale: Scale
    rows: Sequence[int]
    """The number beside each row of cells."""
    columns: Sequence[int]
    cursor: Two
    """A cell; outside of all cells where there is none."""
    tall: int
    """Lines that a cell takes; half lines in colour."""
    wide: int

    @staticmethod
    def stretch(shape: Sequence[int], room: Two, in_shades: bool) -> Two:
        """How large to draw a cell: larger than it must be where there is room."""
        tallest = _TALLEST if in_shades else 2 * _TALLEST
        return max(1, min(tallest, room[0] // max(1, shape[0]))), max(1, min(_WIDEST, room[1] // max(1, shape[1])))


def ruler(picture: Picture) -> Line:
    """Numbers of the columns."""
    text, taken = [" "] * (len(picture.columns) * picture.wide + 24), 0
    for k, column in enumerate(picture.columns):
        label, at = str(column), k * picture.wide
        if at >= taken:
            text[at : at + len(label)] = label
            taken = at + max(len(label) + 2, _APART)
    return [(" " * GUTTER + "".join(text).rstrip(), "muted")]


def legend(scale: Scale, ramp: Ramp | None) -> Line:
    """What a colour or shade stands for; shades where there is no ramp."""
    low, high = (f"1e{end:+03.0f}" for end in (scale.low, scale.high))
    pieces: list[Piece] = [(" " * GUTTER, ""), (f"{low} ", "muted")]
    if ramp is None:
        pieces.append((SHADES[1:], ""))
    else:
        pieces += [(" ", style) for style in ramp.bar(16)]
    return [*pieces, (f" {high}   blank: equal   {_ODD} NaN   {_ENDLESS} infinite", "muted")]


# --- in shades -------------------------------------------------------------------------------------


def shaded(picture: Picture) -> Iterator[Line]:
    """One cell a character, or more characters a cell."""
    for row, number in enumerate(picture.rows):
        for k in range(picture.tall):
            cells = (_shaded_cell(picture, row, column, k) for column in range(len(picture.columns)))
            yield [_gutter(number if k == 0 else None), *cells]


def _shaded_cell(picture: Picture, row: int, column: int, line: int) -> Piece:
    shade = _shade(float(picture.cells[row, column]), picture.scale)
    if (row, column) != picture.cursor:
        return shade * picture.wide, "diverges" if shade in (_ODD, _ENDLESS) else ""
    return (_CURSOR.center(picture.wide, shade) if line == 0 else shade * picture.wide), "cursor"


def _shade(value: float, scale: Scale) -> str:
    """A shade by size; nothing is no error at all."""
    if not math.isfinite(value):
        return _mark(value)
    if value == 0:
        return SHADES[0]
    return SHADES[1 + min(len(SHADES) - 2, int(scale.share(value) * (len(SHADES) - 1)))]


# --- in colour -------------------------------------------------------------------------------------


def coloured(picture: Picture, ramp: Ramp) -> Iterator[Line]:
    """Two cells a character, one above the other, or more characters a cell."""
    halves = picture.cells.shape[0] * picture.tall
    shares = picture.scale.shares(np.nan_to_num(picture.cells, nan=1.0, posinf=1.0))
    places = np.vstack([ramp.places(shares, picture.cells == 0), np.full(len(picture.columns), NOTHING)])
    labelled = -2
    for top in range(0, halves, 2):
        above, below = top // picture.tall, (top + 1) // picture.tall if top + 1 < halves else len(picture.rows)
        is_labelled = top % picture.tall == 0 and top // 2 - labelled >= min(2, picture.tall)
        labelled = top // 2 if is_labelled else labelled
        cells = _two_rows(picture, ramp, places, above, below)
        yield [_gutter(picture.rows[above] if is_labelled else None), *cells]


def _two_rows(picture: Picture, ramp: Ramp, places: Places, above: int, below: int) -> list[Piece]:
    """A line of characters, each with an upper and a lower cell; a mark takes both."""
    text, pairs = "▀" * picture.wide, zip(places[above].tolist(), places[below].tolist(), strict=True)
    line: list[Piece] = [(text, ramp.halves(upper, lower)) for upper, lower in pairs]
    rows = [row for row in {above, below} if row < len(picture.rows)]
    for row in rows:
        for column in np.flatnonzero(~np.isfinite(picture.cells[row])).tolist():
            mark = _mark(float(picture.cells[row, column]))
            line[column] = mark.center(picture.wide), ramp.written_on(int(places[row, column]), is_cursor=False)
    row, column = picture.cursor
    if row in rows:
        value = float(picture.cells[row, column])
        mark = _CURSOR if math.isfinite(value) else _mark(value)
        line[column] = mark.center(picture.wide), ramp.written_on(int(places[row, column]), is_cursor=True)
    return line


def _gutter(number: int | None) -> Piece:
    return f"{right('' if number is None else str(number), GUTTER - 1)} ", "muted"


def _mark(value: float) -> str:
    return _ODD if math.isnan(value) else _ENDLESS
