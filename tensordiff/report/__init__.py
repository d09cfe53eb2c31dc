"""What leaves the tool.

``write_report`` is the way out for both faces and for scripts. What is told is decided in ``story``, how it looks in
one module a format; nothing here prints, and a format's library is imported only when that format is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from tensordiff.compare.row import Row
    from tensordiff.report.compared import Compared
    from tensordiff.search.outcome import Outcome

__all__ = ["write_report"]


def write_report(
    session: Compared,
    outcome: Outcome,
    path: str | os.PathLike[str],
    *,
    rows: Sequence[Row] | None = None,
    title: str | None = None,
    stamp: str | None = None,
) -> None:
    """Write a report of a comparison, in the format of the suffix: ``.md .html .json .txt .csv .png``.

    With ``rows`` it is of those alone, each looked at closely. Nothing in it depends on the clock; ``stamp`` is text
    that says when, for those who want it. Raises ``WriteError`` where the file cannot be written.
    """
    from tensordiff.report.formats import write

    write(session, outcome, path, rows, title, stamp)
