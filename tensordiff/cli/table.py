"""The table of a comparison as lines of text: as wide as the terminal, complete when piped.

``COLUMNS`` is the list of its numeric columns. A colour always comes with a glyph. Names come from outside, and are
printed escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

import click

from tensordiff.cli.streams import Page, echo
from tensordiff.compare.row import Row
from tensordiff.dump.lint import Finding
from tensordiff.dump.model import Dump
from tensordiff.errors import printable
from tensordiff.report.labels import COLOURS, GLYPHS, LEVELS, label, number, short, sparkline
from tensordiff.session.session import Session
from tensordiff.util.sizes import format_percent
from tensordiff.util.text_width import columns, cut_middle, pad


class Column(NamedTuple):
    """A column of numbers, between the layer's name and its profile."""

    heading: str
    value: Callable[[Row], float | None]
    """Called with a measured row; None is shown as ``-``."""
    from_width: int = 0
    """The narrowest terminal that shows it; a pipe shows all columns."""
    is_known: Callable[[Session], bool] = lambda _: True
    """Whether a comparison has such numbers."""


COLUMNS = (
    Column("max|Δ|", attrgetter("diff.max_abs")),
    Column("max rel", attrgetter("diff.max_rel"), from_width=120),
    Column("mse", attrgetter("diff.mse"), from_width=100),
    Column("rel_l2", attrgetter("diff.rel_l2")),
    Column("cosine", attrgetter("diff.cosine_distance"), from_width=132),
    Column("amplif.", attrgetter("amplification"), from_width=144),
    Column(
        "injected",
        lambda row: None if row.injected is None else row.injected.rel_l2,
        is_known=lambda session: session.comparer.injected is not None,
    ),
    Column("golden×", attrgetter("golden_ratio"), is_known=lambda session: session.comparer.golden is not None),
)
_NUMBER, _INDEX = 8, 5
_PIPE_WIDTH = 160  # the width that is assumed without a terminal


class Table:
    """The table of a comparison, printed row by row."""

    def __init__(self, session: Session, page: Page) -> None:
        self.session, self.page = session, page
        width = page.width or _PIPE_WIDTH
        self.columns = [column for column in COLUMNS if width >= column.from_width and column.is_known(session)]
        self.bars = 8 if width < 100 else 16
        numbers = (_NUMBER + 1) * len(self.columns)
        names = map(label, session.pairs)
        longest = max((columns(name) for name in names if name == short(name)), default=10)  # an overlong name is cut
        self.name_width = max(16, min(longest, width - numbers - self.bars - _INDEX - 6))

    def introduce(self, findings: Sequence[Finding]) -> None:
        """Print what is compared, and what lint finds in it."""
        self._dump("reference", self.session.reference)
        self._dump("candidate", self.session.candidate)
        alignment = self.session.alignment
        orphans = f"{len(alignment.reference_orphans)}+{len(alignment.candidate_orphans)} orphans"
        share = f"coverage {format_percent(alignment.coverage.share)}, order: {alignment.order}"
        self.page.print(f"{len(alignment.pairs)}, {orphans}, {share}", "pairs      ")
        if learned := self.session.dumps.learned:
            self.page.print(learned.sentence, " " * 11, " " * 11)
            for sentence in learned.overruled():
                self.page.print(sentence, " " * 11, " " * 13)
        print_findings(self.page, "checks     headers, token ids, embedding", findings)

    def headings(self) -> None:
        """Print the headings of the columns."""
        echo()
        line = self._line(" ", "#", "layer", [column.heading for column in self.columns], "profile")
        echo(click.style(line, bold=True))

    def _dump(self, side: str, dump: Dump) -> None:
        about = f"  ({dump.format}, {len(dump)} entries)"
        room = None if self.page.width is None else self.page.width - 11 - len(about)
        echo(f"{side:9}  {cut_middle(printable(dump.path), room)}{about}")

    def row(self, row: Row) -> None:
        """Print a row; if it could not be measured, print why."""
        glyph, colour = GLYPHS[row.verdict.name], COLOURS[row.verdict.name]
        name = label(row.pair)
        bars = sparkline(row.diff.profile, self.bars) if row.diff else ""
        why = "" if row.diff else printable(row.verdict.why)
        terse = self.page.width is not None
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
        return [number(None if row.diff is None else column.value(row)) for column in self.columns]

    def _line(self, glyph: str, index: str, name: str, cells: Sequence[str], bars: str) -> str:
        numbers = " ".join(f"{cell:>{_NUMBER}}" for cell in cells)
        return f"{glyph} {index:>{_INDEX}} {pad(name, self.name_width)} {numbers} {bars}".rstrip()


def print_findings(page: Page, of_what: str, findings: Sequence[Finding]) -> None:
    """Print the findings of sanity checks, a paragraph each."""
    page.print(of_what if findings else f"{of_what}: passed")
    for finding in findings:
        _print_finding(page, finding)


def _print_finding(page: Page, finding: Finding) -> None:
    glyph, colour = LEVELS[finding.level]
    where = f"{printable(finding.where)}: " if finding.where else ""
    page.print(f"{where}{printable(finding.what)}; {finding.why}; {finding.do}", f"  {glyph} ", "    ", fg=colour)
