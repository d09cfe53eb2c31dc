"""A heatmap as lines of characters, and the part of the plane that it shows. There is no widget in this module.

A ``View`` defines how finely each axis is shown and where the cursor is. At zoom 0 the whole plane is in view; every
step in halves the elements of a cell. Every change gives a new view with the cursor in sight. Cells are drawn in
colour, two in a character, or in shades, one in a character.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.measure.chunks import Floats
from tensordiff.tui.layer.pane import Line, Piece
from tensordiff.tui.layer.scale import NOTHING, Ramp, Scale
from tensordiff.tui.text import right

Two = tuple[int, int]
"""Down and across."""


@dataclass(frozen=True)
class View:
    """A window on a plane of ``size`` elements, with ``room`` for a number of cells."""

    size: Two
    room: Two
    zoom: int = 0
    cursor: Two = (0, 0)
    """The element under the cursor."""
    origin: Two = (0, 0)
    """The first visible element; a multiple of ``per_cell``."""

    @property
    def per_cell(self) -> Two:
        """Elements of a cell."""
        down, across = (_per(self.size[k], self.room[k], self.zoom) for k in (0, 1))
        return down, across

    @property
    def deepest(self) -> int:
        """The zoom at which every cell is one element."""
        fit = max(_per(self.size[k], self.room[k], 0) for k in (0, 1))
        return (fit - 1).bit_length()

    def edges(self, k: int) -> tuple[int, ...]:
        """The first elements of the visible cells along an axis, and the end of the last cell."""
        per = self.per_cell[k]
        end = min(self.size[k], self.origin[k] + per * self.room[k])
        return (*range(self.origin[k], end, per), end)

    @property
    def cell(self) -> Two:
        """The cell under the cursor, counted among the visible ones."""
        down, across = ((self.cursor[k] - self.origin[k]) // self.per_cell[k] for k in (0, 1))
        return down, across

    def without_cursor(self) -> View:
        """The view without its cursor: what a picture depends on."""
        return replace(self, cursor=self.origin)

    def fitted(self, size: Two, room: Two) -> View:
        """The same place in another plane, or with other room."""
        room = max(1, room[0]), max(1, room[1])
        return replace(self, size=size, room=room)._settled()

    def moved(self, down: int, across: int) -> View:
        """The view with the cursor moved by a number of cells."""
        return self.to((self.cursor[0] + down * self.per_cell[0], self.cursor[1] + across * self.per_cell[1]))

    def paged(self, down: int, across: int) -> View:
        """The view with the cursor moved by a number of screenfuls."""
        return self.moved(down * max(1, self.room[0] - 1), across * max(1, self.room[1] - 1))

    def to(self, element: Two) -> View:
        """The view with the cursor on an element."""
        return replace(self, cursor=element)._settled()

    def at_cell(self, row: int, column: int) -> View:
        """The view with the cursor on a visible cell."""
        rows, columns = self.edges(0), self.edges(1)
        row, column = (max(0, min(at, len(edges) - 2)) for at, edges in ((row, rows), (column, columns)))
        return self.to((rows[row], columns[column]))

    def zoomed(self, by: int) -> View:
        """The view zoomed in or out, with the cursor in the middle if possible; 0 shows the whole plane."""
        zoom = max(0, min(self.zoom + by, self.deepest)) if by else 0
        nearer = replace(self, zoom=zoom)
        middle = tuple(self.cursor[k] - nearer.per_cell[k] * self.room[k] // 2 for k in (0, 1))
        return replace(nearer, origin=(middle[0], middle[1]))._settled()

    def _settled(self) -> View:
        """The view within bounds, with the cursor visible."""
        zoom = max(0, min(self.zoom, self.deepest))
        whole = replace(self, zoom=zoom)
        cursor = tuple(max(0, min(self.cursor[k], self.size[k] - 1)) for k in (0, 1))
        origin = tuple(
            _origin(self.origin[k], cursor[k], self.size[k], whole.per_cell[k], self.room[k]) for k in (0, 1)
        )
        return replace(whole, cursor=(cursor[0], cursor[1]), origin=(origin[0], origin[1]))


def _per(size: int, room: int, zoom: int) -> int:
    return max(1, -(-size // room) >> zoom)


def _origin(wanted: int, cursor: int, size: int, per: int, room: int) -> int:
    """The first cell to show, so that the cursor is visible and no room is left empty."""
    cells, at, first = -(-size // per), cursor // per, wanted // per
    first = max(at - room + 1, min(first, at))
    return max(0, min(first, cells - room)) * per


Places = NDArray[np.int64]
"""The index of each cell's colour."""
GUTTER = 7
SHADES = " ·░▒▓█"
_ODD, _ENDLESS, _CURSOR = "×", "∞", "┼"
_WIDEST, _TALLEST = 6, 3
_APART = 8
"""The least number of characters between column numbers."""


class Picture(NamedTuple):
    """What is drawn."""

    cells: Floats
    scale: Scale
    rows: Sequence[int]
    """The number beside each row of cells."""
    columns: Sequence[int]
    cursor: Two
    """A cell; outside of all cells if there is none."""
    tall: int
    """Lines that a cell takes; half lines in colour."""
    wide: int

    @staticmethod
    def stretch(shape: Sequence[int], room: Two, in_shades: bool) -> Two:
        """How large to draw a cell: larger than necessary if there is room."""
        tallest = _TALLEST if in_shades else 2 * _TALLEST
        return max(1, min(tallest, room[0] // max(1, shape[0]))), max(1, min(_WIDEST, room[1] // max(1, shape[1])))


def ruler(picture: Picture) -> Line:
    """The numbers of the columns."""
    text, taken = [" "] * (len(picture.columns) * picture.wide + 24), 0
    for k, column in enumerate(picture.columns):
        label, at = str(column), k * picture.wide
        if at >= taken:
            text[at : at + len(label)] = label
            taken = at + max(len(label) + 2, _APART)
    return [(" " * GUTTER + "".join(text).rstrip(), "muted")]


def legend(scale: Scale, ramp: Ramp | None) -> Line:
    """What a colour stands for or, without a ramp, a shade."""
    low, high = (f"1e{end:+03.0f}" for end in (scale.low, scale.high))
    pieces: list[Piece] = [(" " * GUTTER, ""), (f"{low} ", "muted")]
    if ramp is None:
        pieces.append((SHADES[1:], ""))
    else:
        pieces += [(" ", style) for style in ramp.bar(16)]
    return [*pieces, (f" {high}   blank: equal   {_ODD} NaN   {_ENDLESS} infinite", "muted")]


# --- in shades -------------------------------------------------------------------------------------


def shaded(picture: Picture) -> Iterator[Line]:
    """The picture in shades: one cell a character, or more characters a cell."""
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
    """The shade for an error; blank for no error at all."""
    if not math.isfinite(value):
        return _mark(value)
    if value == 0:
        return SHADES[0]
    return SHADES[1 + min(len(SHADES) - 2, int(scale.share(value) * (len(SHADES) - 1)))]


# --- in colour -------------------------------------------------------------------------------------


def coloured(picture: Picture, ramp: Ramp) -> Iterator[Line]:
    """The picture in colour: two cells a character, one above the other, or more characters a cell."""
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
    """A line of characters, each with an upper and a lower cell; a mark covers both."""
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
