"""The tables of docs/speed.md: which goals a run missed is told by its numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.tables import GOALS, Table, missed_goals

PAGE = Path(__file__).parents[2] / "docs" / "speed.md"


@pytest.mark.parametrize(
    ("measured", "goal", "is_missed"),
    [
        ("**1.75×**", "1.5×", True),
        ("**1.50×**", "1.5×", False),
        ("**5.6×**", "at least 10×", True),
        ("**12×**", "at least 10×", False),
        ("0.34 s", "0.35 s", False),
        ("225 MB", "220 MB", True),
        ("1,225 MB", "1.3 GB", False),
        ("57 ms (20 ms of the processor, 99 of 100 turns within 3.1)", "50 ms", True),
        ("900 ms", "1 s", False),
        ("0.7 s", "seconds", False),
        ("27 s", "-", False),
    ],
)
def test_what_is_held_to_what(measured: str, goal: str, is_missed: bool) -> None:
    assert any(Table("Title", ("what", "measured", "limit we hold"), [("x", measured, goal)]).missed()) is is_missed


def test_the_part_that_names_them() -> None:
    rows = [("1 MB", "0.07 ms", "**1.75×**", "1.5×"), ("16 MB", "0.9 ms", "**1.31×**", "1.5×")]
    some = Table("Large pairs", ("pair", "time", "of the limit", "goal"), rows)
    without = Table("Capture", ("model", "ratio"), [("small", "0.1×")])
    assert missed_goals([without, some]).endswith("\n\n- Large pairs, 1 MB: 1.75×, goal 1.5×\n")
    assert missed_goals([without]).endswith("\n\nNone.\n")


def test_a_goal_of_another_unit_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="different units"):
        missed_goals([Table("Title", ("what", "measured", "goal"), [("x", "3 s", "5 MB")])])


def test_every_goal_of_the_page_can_be_held_to() -> None:
    """The rows as benchmarks write them."""
    found = re.findall(r"^## (.+)\n\n((?:\|.*\n)+)", PAGE.read_text("utf-8"), re.MULTILINE)
    lines = [(title, [line.strip("| ").split(" | ") for line in text.splitlines()]) for title, text in found]
    tables = [Table(title, headings, rows) for title, (headings, _, *rows) in lines]
    assert sum(table.headings[-1] in GOALS for table in tables) >= 5
    assert missed_goals(tables)
    assert all(table.text() in PAGE.read_text("utf-8") for table in tables)


def test_the_page_says_what_is_not_of_the_run() -> None:
    pytest.importorskip("torch")
    from benchmarks import run

    assert "Not of this run: measured by hand" in run.max_times() and "| capture, tiny Llama" in run.max_times()
    assert "Load when this began: 0.2, when it ended: " in run.machine(0.2)
