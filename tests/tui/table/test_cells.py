"""Every column of the table has something to show, and one that has not is refused."""

from __future__ import annotations

import pytest

from tensordiff.compare.comparer import Comparer
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.row import Row
from tensordiff.tui.table.cells import cell
from tensordiff.tui.table.columns import COLUMNS, SORTABLE, Column, PlacedColumn
from tensordiff.tui.table.model import Batch, Listing, Order
from tests.making import nudged, numbers, pairs

IN_CELLS = [column for column in COLUMNS if column.id != "layer"]  # names depend on the tree: lines has them
OF_NUMBERS = [column for column in COLUMNS if column.value is not None]


def listing() -> Listing:
    """One row that diverges."""
    a = numbers(4, 4)
    made = Listing.of(pairs({"a": a}, {"a": nudged(a, 0.5)}))
    made.put(Batch.of(0, list(Comparer().rows(made.pairs))))
    return made


@pytest.mark.parametrize("column", IN_CELLS, ids=lambda column: column.id)
def test_every_column_has_a_cell_as_wide_as_it(column: Column) -> None:
    measured, placed = listing(), PlacedColumn(column, 0, column.width)
    assert len(cell(measured, 0, placed)) == column.width
    assert cell(measured, 0, placed).strip()
    assert len(cell(Listing.of(measured.pairs), 0, placed)) == column.width


@pytest.mark.parametrize("column", OF_NUMBERS, ids=lambda column: column.id)
def test_every_number_is_an_attribute_of_a_row(column: Column) -> None:
    first, _, second = str(column.value).partition(".")
    assert first in Row._fields
    assert not second or second in Diff._fields


@pytest.mark.parametrize("column", SORTABLE)
def test_every_sortable_column_has_an_order(column: str) -> None:
    assert listing().order(Order(column)).tolist() == [0]


def test_a_column_that_nothing_shows_is_refused() -> None:
    unknown = PlacedColumn(Column("speed", "speed", 8, 0, "Nothing that is measured"), 0, 8)
    measured = listing()
    for one in (measured, Listing.of(measured.pairs)):
        with pytest.raises(ValueError, match="the column 'speed' has neither a value in COLUMNS nor a case in cells"):
            cell(one, 0, unknown)
