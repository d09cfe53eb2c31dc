"""Which part of a plane a heatmap shows, how finely, and where its cursor stands: state without a screen.

At zoom 0 the whole plane is in view, each axis in as many elements a cell as it takes; every step in halves them.
Every change gives a new view, in which the cursor is in sight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

Two = tuple[int, int]
"""Down and across."""


@dataclass(frozen=True)
class View:
    """A window on a plane of ``size`` elements, with ``room`` for so many cells."""

    size: Two
    room: Two
    zoom: int = 0
    cursor: Two = (0, 0)
    """The element pointed at."""
    origin: Two = (0, 0)
    """The first element in sight; a multiple of ``per_cell``."""

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
        """Where the cells in sight begin along an axis, and where the last ends."""
        per = self.per_cell[k]
        end = min(self.size[k], self.origin[k] + per * self.room[k])
        return (*range(self.origin[k], end, per), end)

    @property
    def cell(self) -> Two:
        """The cell under the cursor, counted in sight."""
        down, across = ((self.cursor[k] - self.origin[k]) // self.per_cell[k] for k in (0, 1))
        return down, across

    def without_cursor(self) -> View:
        """What is in sight, wherever the cursor stands: what a picture depends on."""
        return replace(self, cursor=self.origin)

    def fitted(self, size: Two, room: Two) -> View:
        """The same place in another plane, or with other room."""
        room = max(1, room[0]), max(1, room[1])
        return replace(self, size=size, room=room)._settled()

    def moved(self, down: int, across: int) -> View:
        """The cursor so many cells on."""
        return self.to((self.cursor[0] + down * self.per_cell[0], self.cursor[1] + across * self.per_cell[1]))

    def paged(self, down: int, across: int) -> View:
        """The cursor so many screenfuls on."""
        return self.moved(down * max(1, self.room[0] - 1), across * max(1, self.room[1] - 1))

    def to(self, element: Two) -> View:
        """The cursor on an element."""
        return replace(self, cursor=element)._settled()

    def at_cell(self, row: int, column: int) -> View:
        """The cursor on a cell in sight."""
        rows, columns = self.edges(0), self.edges(1)
        row, column = (max(0, min(at, len(edges) - 2)) for at, edges in ((row, rows), (column, columns)))
        return self.to((rows[row], columns[column]))

    def zoomed(self, by: int) -> View:
        """Closer or further, the cursor in the middle where that can be; 0 is the whole plane."""
        zoom = max(0, min(self.zoom + by, self.deepest)) if by else 0
        nearer = replace(self, zoom=zoom)
        middle = tuple(self.cursor[k] - nearer.per_cell[k] * self.room[k] // 2 for k in (0, 1))
        return replace(nearer, origin=(middle[0], middle[1]))._settled()

    def _settled(self) -> View:
        """All within bounds, the cursor in sight."""
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
    """The first cell to show so that the cursor is in sight and no room is left empty."""
    cells, at, first = -(-size // per), cursor // per, wanted // per
    first = max(at - room + 1, min(first, at))
    return max(0, min(first, cells - room)) * per
