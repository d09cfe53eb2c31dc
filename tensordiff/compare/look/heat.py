"""error| over two axes of a pair, in as many cells as a picture has.

A cell holds the largest error of all elements in it, over all other axes as well, so that a single wrong element is
visible at any zoom. NaN counts as largest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.measure.chunks import Block, Floats, blocks, errors
from tensordiff.compare.measure.diff import cuts_within
from tensordiff.dump.dtypes import Array

Cuts = NDArray[np.int64]


class Plane(NamedTuple):
    """Two axes of a shape, cut into cells."""

    down: int
    across: int
    rows: tuple[int, ...]
    """Where each row of cells begins, and where the last one ends."""
    columns: tuple[int, ...]

    def block(self, row: int, column: int, shape: tuple[int, ...]) -> Block:
        """The rectangle of elements in one cell."""
        ranges = {
            self.down: slice(self.rows[row], self.rows[row + 1]),
            self.across: slice(self.columns[column], self.columns[column + 1]),
        }
        return tuple(ranges.get(axis, slice(0, size)) for axis, size in enumerate(shape))


def heat(ref: Array, cand: Array, plane: Plane) -> Iterator[Floats]:
    """The largest error in each cell, over the blocks read so far."""
    rows, columns = np.array(plane.rows), np.array(plane.columns)
    cells = np.zeros((len(rows) - 1, len(columns) - 1))
    yield cells.copy()
    covered = _covered_block(plane, ref.ndim)
    ref, cand = ref[covered], cand[covered]
    for block in blocks(ref.shape):
        _, _, error = errors(ref[block], cand[block])
        flat = _over_other_axes(error, plane)
        _merge_block(
            flat, block[plane.down].start, rows - rows[0], block[plane.across].start, columns - columns[0], cells
        )
        yield cells.copy()


def _covered_block(plane: Plane, ndim: int) -> Block:
    """The part of the tensor that the cells cover."""
    ranges = {
        plane.down: slice(plane.rows[0], plane.rows[-1]),
        plane.across: slice(plane.columns[0], plane.columns[-1]),
    }
    return tuple(ranges.get(axis, slice(None)) for axis in range(ndim))


def _over_other_axes(error: Floats, plane: Plane) -> Floats:
    others = tuple(axis for axis in range(error.ndim) if axis not in (plane.down, plane.across))
    flat: Floats = error.max(others)
    return flat if plane.down < plane.across else flat.T


def _merge_block(flat: Floats, top: int, rows: Cuts, left: int, columns: Cuts, cells: Floats) -> None:
    """Reduce a block to cells and merge them; ``np.maximum`` keeps a NaN."""
    row_cuts, row = cuts_within(rows, top, flat.shape[0])
    column_cuts, column = cuts_within(columns, left, flat.shape[1])
    largest = np.maximum.reduceat(np.maximum.reduceat(flat, row_cuts, axis=0), column_cuts, axis=1)
    into = cells[row : row + len(row_cuts), column : column + len(column_cuts)]
    np.maximum(into, largest, out=into)
