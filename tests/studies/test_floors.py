"""Where healthy layers stand: the tables, and that sums of any length stay within the floors."""

from __future__ import annotations

from studies.captures import plain_torch
from studies.floors import LENGTHS, Layer, by_component, by_depth, by_length
from tensordiff.compare.judge.verdict import FLOORS

F32 = ("float32", "float32")


def test_sums_of_any_length_stay_within_the_floor() -> None:
    with plain_torch():
        rows = [line.strip("| ").split(" | ") for line in by_length()[2:]]
    assert [row[0] for row in rows] == ["float32", "bfloat16", "float16"]
    for dtype, *errors in rows:
        assert len(errors) == len(LENGTHS)
        assert max(map(float, errors)) < FLOORS[dtype].agrees / 3


def test_tables_have_a_row_a_component_and_a_column_a_block() -> None:
    found = [Layer(F32, "mlp", 0, 1e-7, None), Layer(F32, "mlp", 1, 3e-7, 2.0), Layer(F32, "norm", None, 2e-7, 1.0)]
    table = by_component(found)
    assert table[2] == "| float32 / float32 | mlp | 2 | 2.0e-07 | 3.0e-07 | 3.0e-07 | 5 | 2.0 | 2.0 |"
    assert len(table) == 4
    assert by_depth(found)[2:4] == ["| float32 / float32 | 1.0e-07 | 3.0e-07 |", "| float32 / bfloat16 | - | - |"]
