"""Rows as lines of text: as wide as the terminal, complete when piped.

A colour always has a glyph beside it. Names come from outside and are printed escaped.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import click

from tensordiff.compare.engine import Row
from tensordiff.compare.lint import Finding
from tensordiff.compare.sums import Diff
from tensordiff.errors import printable
from tensordiff.report.sparkline import sparkline
from tensordiff.search.outcome import Outcome
from tensordiff.session import Session

GLYPHS = {
    "agrees": ("✓", "green"),
    "drifts": ("~", "yellow"),
    "diverges": ("✗", "red"),
    "unknown": ("?", "magenta"),
}
LEVELS = {"error": ("✗", "red"), "warning": ("!", "yellow"), "note": ("·", "cyan")}


class Column(NamedTuple):
    """A number of the diff: its heading, its field, and the width of terminal from which it is shown."""

    heading: str
    field: str
    from_width: int


COLUMNS = (
    Column("max|Δ|", "max_abs", 0), Column("max rel", "max_rel", 120), Column("mse", "mse", 100),
    Column("rel_l2", "rel_l2", 0), Column("cosine", "cosine_distance", 132),
)  # fmt: skip
_NUMBER, _INDEX = 8, 5


def echo(text: str = "") -> None:
    """Print data; colour only for a terminal that wants it."""
    click.echo(text, color=False if os.environ.get("NO_COLOR") else None)


class Table:
    """One line a row, streamed."""

    def __init__(self, session: Session) -> None:
        self.session = session
        wide = 160 if not sys.stdout.isatty() else shutil.get_terminal_size().columns
        self.columns = [column for column in COLUMNS if wide >= column.from_width]
        self.has_injected = session.engine.injected is not None
        self.has_golden = session.engine.golden is not None
        self.bars = 8 if wide < 100 else 16
        numbers = (_NUMBER + 1) * (len(self.columns) + self.has_injected + self.has_golden)
        longest = max((len(printable(_label_of(p.name, p.reference.port))) for p in session.pairs), default=10)
        self.name_width = max(16, min(longest, wide - numbers - self.bars - _INDEX - 6))

    def open(self, findings: Sequence[Finding]) -> None:
        """What is compared, what is doubtful about it, and the headings."""
        session, alignment = self.session, self.session.alignment
        for side, dump in (("reference", session.reference), ("candidate", session.candidate)):
            echo(f"{side:9}  {printable(dump.path)}  ({dump.format}, {len(dump)} entries)")
        orphans = f"{len(alignment.reference_orphans)}+{len(alignment.candidate_orphans)} orphans"
        echo(
            f"pairs      {len(alignment.pairs)}, {orphans}, coverage {alignment.coverage:.0%}, order: {alignment.order}"
        )
        echo("lint       " + ("nothing found" if not findings else ""))
        for finding in findings:
            echo("  " + finding_line(finding))
        if session.pairs:
            echo()
            echo(click.style(self._line(" ", "#", "layer", self._headings(), "profile"), bold=True))

    def _headings(self) -> list[str]:
        extra = ["injected"] * self.has_injected + ["golden×"] * self.has_golden
        return [column.heading for column in self.columns] + extra

    def row(self, row: Row) -> None:
        """Print one row."""
        glyph, colour = GLYPHS[row.verdict.name]
        name = _fit(printable(_label_of(row.pair.name, row.pair.reference.port)), self.name_width)
        bars = sparkline(row.diff.profile, self.bars) if row.diff else printable(row.verdict.why)
        line = self._line(glyph, str(row.pair.index), name, self._numbers(row), bars)
        echo(click.style(line, fg=colour) if row.verdict.name != "agrees" else line)

    def _numbers(self, row: Row) -> list[str]:
        if row.diff is None:
            return ["-"] * len(self._headings())
        cells = [number(getattr(row.diff, column.field)) for column in self.columns]
        if self.has_injected:
            cells.append(number(row.injected.rel_l2) if row.injected else "-")
        if self.has_golden:
            cells.append(number(row.golden_ratio) if row.golden_ratio is not None else "-")
        return cells

    def _line(self, glyph: str, index: str, name: str, cells: Sequence[str], bars: str) -> str:
        numbers = " ".join(f"{cell:>{_NUMBER}}" for cell in cells)
        return f"{glyph} {index:>{_INDEX}} {name:<{self.name_width}} {numbers} {bars}"


def _label_of(name: str, port: str) -> str:
    return name if port in ("output", "output_0") else f"{name} {port}"


def number(value: float) -> str:
    """A number in at most eight characters."""
    return "0" if value == 0 else f"{value:.2e}"


def _fit(text: str, width: int) -> str:
    """Cut in the middle: a layer's number and its last part tell it from others."""
    if len(text) <= width:
        return text
    head = (width - 1) // 3
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def finding_line(finding: Finding) -> str:
    """A lint finding on one line."""
    glyph, colour = LEVELS[finding.level]
    where = f"{printable(finding.where)}: " if finding.where else ""
    return f"{click.style(glyph, fg=colour)} {where}{printable(finding.what)}; {finding.why}; {finding.do}"


def summary_lines(session: Session, outcome: Outcome) -> Iterator[str]:
    """What it came to, in a few lines."""
    counts = {name: sum(row.verdict.name == name for row in outcome.rows) for name in GLYPHS}
    yield ""
    yield "  ".join(
        click.style(f"{GLYPHS[name][0]} {count} {name}", fg=GLYPHS[name][1]) for name, count in counts.items() if count
    )
    for side, orphans in (
        ("reference", session.alignment.reference_orphans),
        ("candidate", session.alignment.candidate_orphans),
    ):
        if orphans:
            shown = ", ".join(printable(entry.name) for entry in orphans[:4])
            yield f"not paired on the {side}: {shown}{f' and {len(orphans) - 4} more' if len(orphans) > 4 else ''}"
    if not outcome.rows:
        yield "Nothing could be paired: write rules that make the names alike, and give them with --rules."
    elif outcome.culprit is None:
        yield f"verdict: {outcome.verdict}"
    else:
        yield from _culprit_lines(outcome.culprit)


def _culprit_lines(row: Row) -> Iterator[str]:
    name = printable(_label_of(row.pair.name, row.pair.reference.port))
    yield click.style(f"verdict: diverges, first at {name}", fg="red", bold=True)
    yield f"  {row.verdict.why}"
    if row.diff is not None:
        yield f"  largest |Δ| {row.diff.max_abs:.6g} at {_at(row.diff)} of {list(row.shape)}"
    yield f"  reference  {printable(row.pair.reference.name)}"
    yield f"  candidate  {printable(row.pair.candidate.name)}"


def _at(diff: Diff) -> str:
    return str(list(diff.max_abs_index or ()))
