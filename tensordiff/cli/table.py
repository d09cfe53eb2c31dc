"""Rows as lines of text: as wide as the terminal, complete when piped, but for names without end.

A colour always has a glyph beside it. Names come from outside and are printed escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import click

from tensordiff.cli.streams import Page, echo
from tensordiff.compare.row import Row
from tensordiff.dump.lint import Finding
from tensordiff.dump.model import Dump
from tensordiff.errors import printable
from tensordiff.report.labels import COLOURS, GLYPHS, LEVELS, label, number, short, sparkline
from tensordiff.session.session import Session
from tensordiff.util.text_width import columns, cut_middle, pad


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
_AMPLIFICATION_FROM = 144  # columns of terminal
_WIDE = 160  # what is laid out for where nothing has a width


class Table:
    """One line a row, streamed."""

    def __init__(self, session: Session, page: Page) -> None:
        self.session, self.page = session, page
        wide = page.wide or _WIDE
        self.columns = [column for column in COLUMNS if wide >= column.from_width]
        self.has_injected = session.engine.injected is not None
        self.has_golden = session.engine.golden is not None
        self.has_amplification = wide >= _AMPLIFICATION_FROM
        self.bars = 8 if wide < 100 else 16
        numbers = (_NUMBER + 1) * len(self._headings())
        names = map(label, session.pairs)
        longest = max((columns(name) for name in names if name == short(name)), default=10)  # one endless name is cut
        self.name_width = max(16, min(longest, wide - numbers - self.bars - _INDEX - 6))

    def open(self, findings: Sequence[Finding]) -> None:
        """What is compared, and what is doubtful about it."""
        self._dump("reference", self.session.reference)
        self._dump("candidate", self.session.candidate)
        alignment = self.session.alignment
        orphans = f"{len(alignment.reference_orphans)}+{len(alignment.candidate_orphans)} orphans"
        share = f"coverage {alignment.coverage:.0%}, order: {alignment.order}"
        self.page.print(f"{len(alignment.pairs)}, {orphans}, {share}", "pairs      ")
        print_findings(self.page, "lint       of headers, token ids and the embedding", findings)

    def headings(self) -> None:
        """Print what the columns are."""
        echo()
        echo(click.style(self._line(" ", "#", "layer", self._headings(), "profile"), bold=True))

    def _dump(self, side: str, dump: Dump) -> None:
        about = f"  ({dump.format}, {len(dump)} entries)"
        room = None if self.page.wide is None else self.page.wide - 11 - len(about)
        echo(f"{side:9}  {cut_middle(printable(dump.path), room)}{about}")

    def _headings(self) -> list[str]:
        extra = ["in→out×"] * self.has_amplification + ["injected"] * self.has_injected + ["golden×"] * self.has_golden
        return [column.heading for column in self.columns] + extra

    def row(self, row: Row) -> None:
        """Print one row; of one that could not be measured, why."""
        glyph, colour = GLYPHS[row.verdict.name], COLOURS[row.verdict.name]
        name = label(row.pair)
        bars = sparkline(row.diff.profile, self.bars) if row.diff else ""
        why = "" if row.diff else printable(row.verdict.why)
        terse = self.page.wide is not None
        line = self._line(
            glyph,
            str(row.pair.index),
            cut_middle(name, self.name_width) if terse else short(name),
            self._numbers(row),
            bars if terse else bars + why,
        )
        echo(click.style(line, fg=colour) if row.verdict.name != "agrees" else line)
        if why and terse:
            self.page.print(why, " " * (_INDEX + 3), " " * (_INDEX + 3), fg=colour)

    def _numbers(self, row: Row) -> list[str]:
        if row.diff is None:
            return ["-"] * len(self._headings())
        cells = [number(getattr(row.diff, column.field)) for column in self.columns]
        if self.has_amplification:
            cells.append(number(row.amplification))
        if self.has_injected:
            cells.append(number(row.injected.rel_l2 if row.injected else None))
        if self.has_golden:
            cells.append(number(row.golden_ratio))
        return cells

    def _line(self, glyph: str, index: str, name: str, cells: Sequence[str], bars: str) -> str:
        numbers = " ".join(f"{cell:>{_NUMBER}}" for cell in cells)
        return f"{glyph} {index:>{_INDEX}} {pad(name, self.name_width)} {numbers} {bars}".rstrip()


def print_findings(page: Page, of_what: str, findings: Sequence[Finding]) -> None:
    """What lint has to say of something, a paragraph a finding."""
    page.print(of_what if findings else f"{of_what}: nothing found")
    for finding in findings:
        _print_finding(page, finding)


def _print_finding(page: Page, finding: Finding) -> None:
    glyph, colour = LEVELS[finding.level]
    where = f"{printable(finding.where)}: " if finding.where else ""
    page.print(f"{where}{printable(finding.what)}; {finding.why}; {finding.do}", f"  {glyph} ", "    ", fg=colour)
