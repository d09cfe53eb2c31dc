"""The rows around a layer: whether its inputs were clean, what is within and around it, what ran before and after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.cells import cell_len
from textual.message import Message

from tensordiff.compare.row import Row
from tensordiff.errors import printable
from tensordiff.report.labels import GLYPHS, label, number
from tensordiff.search.neighbours import RowNeighbours
from tensordiff.tui.layer.pane import Line, ListPane
from tensordiff.tui.layer.subject import Subject
from tensordiff.tui.text import fit
from tensordiff.util.text_width import cut_end


class Neighbours(NamedTuple):
    """Groups of rows around one."""

    rows: Sequence[Row]
    at: int
    around: RowNeighbours

    def groups(self) -> Iterator[tuple[str, Sequence[int]]]:
        """The groups: a title, and the positions of the rows."""
        found = self.around
        yield self._inputs_title(), found.inputs
        yield "its other outputs", found.outputs
        yield "the module around it", _some(found.parent)
        yield f"within it ({len(found.children)})", found.children
        yield "before it", _some(found.previous)
        yield "after it", _some(found.following)

    def _inputs_title(self) -> str:
        if self.rows[self.at].is_input:
            return "its other inputs"
        if not self.around.inputs:
            return "its inputs were not compared"
        names = {self.rows[k].verdict.name for k in self.around.inputs}
        if names == {"agrees"}:
            return "its inputs: clean"
        return "its inputs: " + ("not all could be compared" if names <= {"agrees", "unknown"} else "not clean")


class NeighboursPane(ListPane[Neighbours]):
    """A list of rows to go to."""

    @dataclass
    class Walked(Message):
        """The user chose a row to go to."""

        at: int

    def answers(self, subject: Subject, _question: None) -> Iterator[Neighbours]:
        """Find the neighbours."""
        yield Neighbours(subject.rows, subject.at, subject.around)

    def heading(self, _answer: Neighbours) -> Sequence[Line]:
        """The title."""
        return [[("around this layer", "title"), ("  enter: go there", "muted")]]

    def _lines(self, answer: Neighbours) -> Iterator[tuple[Line, int | None]]:
        """Each line with its row; titles have none."""
        for title, rows in answer.groups():
            if rows or title.startswith("its inputs"):
                yield [(title, "muted")], None
            for k in rows:
                yield _line(answer.rows[k], self.content_size.width), k

    def body(self, answer: Neighbours) -> Sequence[Line]:
        """Rows, grouped by their relation to this one."""
        return [line for line, _ in self._lines(answer)]

    def stops(self, answer: Neighbours) -> Sequence[int]:
        """The lines with rows."""
        return [k for k, (_, row) in enumerate(self._lines(answer)) if row is not None]

    def open(self) -> None:
        """Go to the row."""
        if self.answer is not None:
            rows = [row for _, row in self._lines(self.answer) if row is not None]
            if rows:
                self.post_message(self.Walked(rows[self.at]))


def _line(row: Row, width: int) -> Line:
    """A row in few words."""
    name = row.verdict.name
    error = number(row.diff.rel_l2) if row.diff else "-"
    room = max(12, min(60, width - 32))
    start = f"  {GLYPHS[name]} {name:<9}{error:>9}  {row.pair.index:>6}  {fit(label(row.pair), room)}"
    rest = max(0, width - room - 32)
    why = f"  {cut_end(printable(row.verdict.why), rest - 2, cell_len)}" if rest > 20 else ""
    return [(start, name if name != "agrees" else ""), (why, "muted")]


def _some(at: int | None) -> tuple[int, ...]:
    return () if at is None else (at,)
