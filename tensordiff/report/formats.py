"""Writing a report: the suffix says which format. Each format is imported only when it is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from tensordiff.compare.row import Row
from tensordiff.errors import WriteError, printable
from tensordiff.report.compared import Compared
from tensordiff.report.model import Story, tell
from tensordiff.search.outcome import Outcome
from tensordiff.util.atomic_write import write_file

Format = Callable[[Compared, Story], str | bytes]


def write(
    session: Compared,
    outcome: Outcome,
    path: str | os.PathLike[str],
    rows: Sequence[Row] | None = None,
    title: str | None = None,
    stamp: str | None = None,
) -> None:
    """Write one report."""
    made = format_for(path)
    write_file(path, made(session, tell(session, outcome, rows, title, stamp)), make_folders=True)


def write_story(session: Compared, story: Story, path: str | os.PathLike[str]) -> None:
    """Write a story that is told already: for several formats of one."""
    write_file(path, format_for(path)(session, story), make_folders=True)


def format_for(path: str | os.PathLike[str]) -> Format:
    """What writes a file of this name; raises where no format has its suffix."""
    suffix = Path(path).suffix.lower()
    if suffix not in _FORMATS:
        known = " ".join(_FORMATS)
        raise WriteError(f"{printable(os.fspath(path))}: no report has the suffix {suffix!r}; use one of {known}")
    return _FORMATS[suffix]


def _text(_: Compared, story: Story) -> str:
    from tensordiff.report.text import text

    return text(story)


def _markdown(_: Compared, story: Story) -> str:
    from tensordiff.report.markdown import markdown

    return markdown(story)


def _csv(_: Compared, story: Story) -> str:
    from tensordiff.report.csv import csv_text

    return csv_text(story)


def _json(session: Compared, story: Story) -> str:
    from tensordiff.report.json import dumps
    from tensordiff.report.report_json import report_json

    return dumps(report_json(session, story)) + "\n"


def _html(_: Compared, story: Story) -> str:
    from tensordiff.report.html import html

    return html(story)


def _png(_: Compared, story: Story) -> bytes:
    from tensordiff.report.plot import plot

    return plot(story)


_FORMATS: dict[str, Format] = {
    ".md": _markdown, ".html": _html, ".json": _json, ".txt": _text, ".csv": _csv, ".png": _png,
}  # fmt: skip
