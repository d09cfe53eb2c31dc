"""Reports of a comparison, written for readers who did not run it.

``write_report`` writes one file; ``render_report`` returns its content. ``model`` decides what a report says; one
module per format decides how it looks (``formats`` lists them). Nothing here prints, and the library of a format is
imported only when that format is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from tensordiff.compare.row import Row
    from tensordiff.search.outcome import Outcome
    from tensordiff.session.session import Session

__all__ = ["render_report", "write_report"]


def write_report(
    session: Session,
    outcome: Outcome,
    path: str | os.PathLike[str],
    *,
    rows: Sequence[Row] | None = None,
    title: str | None = None,
    stamp: str | None = None,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Write a report of a comparison in the format of the suffix: ``.md .html .json .txt .csv .png``.

    With ``rows`` the report covers only those, each in detail. ``notes`` maps layers to notes, as in a session file.
    The same comparison produces the same bytes: a date appears only as the text of ``stamp``. Raises ``WriteError`` if
    the file cannot be written.
    """
    from tensordiff.report.formats import render_for, write_model
    from tensordiff.report.model import build_report

    render_for(path)  # refuse an unknown suffix before building the report
    write_model(build_report(session, outcome, rows, title, stamp, notes), path)


def render_report(
    session: Session,
    outcome: Outcome,
    path: str | os.PathLike[str],
    *,
    rows: Sequence[Row] | None = None,
    title: str | None = None,
    notes: Mapping[str, str] | None = None,
) -> str | bytes:
    """Return the content that ``write_report`` would write to a path, without writing it."""
    from tensordiff.report.formats import render_for
    from tensordiff.report.model import build_report

    return render_for(path)(build_report(session, outcome, rows, title, None, notes))
