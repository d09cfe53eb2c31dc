"""Reports of a comparison for people who were not there.

``write_report`` writes one file, ``render_report`` gives its content. What a report says is decided in ``model``; how
it looks, in one module a format (``formats`` has the list). Nothing here prints, and a format's library is imported
only when that format is written.
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
    """Write a report of a comparison, in the format of the suffix: ``.md .html .json .txt .csv .png``.

    With ``rows`` it covers only those, each in detail; ``notes`` are by layer, as a session file has them. The
    same comparison makes the same bytes: a date is in it only as the text of ``stamp``. Raises ``WriteError`` where the
    file cannot be written.
    """
    from tensordiff.report.formats import render_for, write_model
    from tensordiff.report.model import build_report

    render_for(path)  # an unknown suffix is refused before the work of building the report
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
    """The content that ``write_report`` would write to a path; nothing is written."""
    from tensordiff.report.formats import render_for
    from tensordiff.report.model import build_report

    return render_for(path)(build_report(session, outcome, rows, title, None, notes))
