"""The page that ``benchmarks.scale --write`` writes into: nothing in it that was written by hand may be lost."""

from __future__ import annotations

from benchmarks import scale

_MADE = ("|", "![", "Measured on ", "4 GB, measured by workers on the same ")


def test_between_the_marks_stands_only_what_is_measured_again() -> None:
    found = scale.MADE.findall(scale.PAGE.read_text("utf-8"))
    assert len(found) == 1
    paragraphs = found[0][1].strip().split("\n\n")
    assert len(paragraphs) == 6
    assert [paragraph for paragraph in paragraphs if not paragraph.startswith(_MADE)] == []
