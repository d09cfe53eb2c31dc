"""The parameters of two checkpoints, one a line, as ``tensordiff weights --all`` prints them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from textual.binding import BindingType

from tensordiff.errors import printable
from tensordiff.report.labels import PARAMETER_GLYPHS, number, shape_text, types_text
from tensordiff.tui.keys import bindings
from tensordiff.tui.line_list import LineList, Span
from tensordiff.tui.table.model import Pattern
from tensordiff.tui.text import fit, right
from tensordiff.weights.comparison import ParameterRow, WeightVerdict

_STYLES: dict[WeightVerdict, str] = {
    "agrees": "good", "diverges": "bad", "missing": "bad", "unexpected": "mark", "unknown": "mark",
}  # fmt: skip
_SHAPE, _TYPES, _NUMBER = 12, 18, 9
_SHORT_WIDTH = 100
"""In fewer cells, shapes and types are left out for names and sentences."""


class ParameterList(LineList[ParameterRow]):
    """All parameters, or those that differ, or those whose name matches."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("weights")
    BINDING_GROUP_TITLE = "Parameters"
    nothing = "none"
    DEFAULT_CSS = """
    ParameterList { scrollbar-gutter: stable; scrollbar-size-vertical: 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.all: list[ParameterRow] = []
        self.only_findings = False
        self.pattern: Pattern | None = None

    def add(self, rows: Sequence[ParameterRow]) -> None:
        """Append more parameters."""
        self.all += rows
        self.show_items((*self.items, *filter(self._is_shown, rows)))

    def choose(self, *, only_findings: bool, pattern: Pattern | None) -> None:
        """Show another selection; the cursor stays on its parameter if that is still shown."""
        self.only_findings, self.pattern, before = only_findings, pattern, self.current
        items = tuple(filter(self._is_shown, self.all))
        self.cursor = items.index(before) if before in items else 0
        self.show_items(items)

    def _is_shown(self, row: ParameterRow) -> bool:
        if self.only_findings and row.verdict == "agrees":
            return False
        return self.pattern is None or self.pattern.matches(row.name)

    def spans(self, item: ParameterRow, width: int) -> Iterator[Span]:
        """Verdict, name, shape, types, two numbers, and what happened to it."""
        yield f"{PARAMETER_GLYPHS[item.verdict]} ", _STYLES[item.verdict]
        for text, size, is_number in columns(item, width):
            yield f"{right(text, size) if is_number else fit(text, size)} ", ""
        yield printable(item.sentence), "dim" if item.verdict == "agrees" else _STYLES[item.verdict]

    def action_finding(self, way: int) -> None:
        """Go to the next parameter that does not agree, or the previous one."""
        at = self.cursor + way
        while 0 <= at < len(self.items):
            if self.items[at].verdict != "agrees":
                self.move(at)
                return
            at += way

    def action_findings(self) -> None:
        """Show only parameters that do not agree, or all."""
        self.choose(only_findings=not self.only_findings, pattern=self.pattern)

    def action_filter(self) -> None:
        """Filter by name."""
        self.ask("filter")

    def action_export(self) -> None:
        """Write the comparison to a file."""
        self.ask("export")

    def action_copy(self, what: str) -> None:
        """Copy the name, or the row as JSON."""
        self.ask(f"copy {what}")


def columns(row: ParameterRow | None, width: int) -> Iterator[tuple[str, int, bool]]:
    """The cells of a line before its sentence, each with its width and whether it is a number; headings for None."""
    is_short = width < _SHORT_WIDTH
    name_width = max(24, width * 2 // 5 if is_short else width // 3)
    yield "parameter" if row is None else printable(row.name), name_width, False
    if not is_short:
        yield "shape" if row is None else shape_text(row), _SHAPE, False
        yield "type" if row is None else types_text(row), _TYPES, False
        yield "max|Δ|" if row is None else number(row.diff.max_abs if row.diff else None), _NUMBER, True
    yield "rel_l2" if row is None else number(row.diff.rel_l2 if row.diff else None), _NUMBER, True
