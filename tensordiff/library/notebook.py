"""HTML for a result in a notebook: the verdict, the culprit, and a table with a sparkline of each row's error.

Names come from dumps, which are untrusted, so all text is escaped and there is no script.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from tensordiff.compare.hint import Hint
from tensordiff.compare.row import Row
from tensordiff.report.labels import GLYPHS, counted, format_shape, label, number, short, sparkline
from tensordiff.search.outcome import Outcome

_MOST_ROWS = 60
_AROUND = 5
"""Rows shown before and after a culprit if the table is cut."""
_BARS = 24
_COLOURS = {"agrees": "#2e8b57", "drifts": "#b8860b", "diverges": "#d0342c", "unknown": "#9932cc"}
_HEADINGS = ("", "#", "layer", "shape", "max|Δ|", "rel_l2", "error along the tensor")


def result_html(outcome: Outcome, sentence: str, hint: Hint | None) -> str:
    """The result as a fragment of HTML."""
    return "".join(
        (
            '<div class="tensordiff">',
            f"<p><b>{_mark(outcome.verdict)} {escape(_heading(outcome))}</b><br>{escape(sentence)}</p>",
            f"<p>looks like: {escape(hint.sentence)}</p>" if hint else "",
            "".join(f"<p>{escape(reason)}</p>" for reason in outcome.reasons),
            _table(outcome),
            "</div>",
        )
    )


def _heading(outcome: Outcome) -> str:
    counts = ((name, sum(row.verdict.name == name for row in outcome.rows)) for name in GLYPHS)
    said = ", ".join(f"{count} {name}" for name, count in counts if count)
    return f"{outcome.verdict}: {counted(len(outcome.rows), 'pair')}" + (f" ({said})" if said else "")


def _table(outcome: Outcome) -> str:
    shown = _shown(outcome)
    head = "".join(f'<th style="text-align:left">{escape(text)}</th>' for text in _HEADINGS)
    first = "" if outcome.culprit is None else _line(outcome.culprit, is_culprit=True)
    body = "".join(_lines(shown, outcome))
    left = len(outcome.rows) - len(shown)
    note = f"<p>{left} rows are not shown; <code>.rows</code> has all of them.</p>" if left else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{first}{body}</tbody></table>{note}"


def _shown(outcome: Outcome) -> list[Row]:
    """All rows of a short comparison; of a long one the rows around the culprits, then the first rows."""
    rows = outcome.rows
    if len(rows) <= _MOST_ROWS:
        return list(rows)
    places = {row.pair.index: at for at, row in enumerate(rows)}
    near = (
        at
        for row in outcome.culprits
        for at in range(places[row.pair.index] - _AROUND, places[row.pair.index] + _AROUND + 1)
    )
    chosen = list(dict.fromkeys((*(at for at in near if 0 <= at < len(rows)), *range(len(rows)))))[:_MOST_ROWS]
    return [rows[at] for at in sorted(chosen)]


def _lines(rows: Iterable[Row], outcome: Outcome) -> Iterator[str]:
    culprits = {row.pair.index for row in outcome.culprits}
    for row in rows:
        yield _line(row, is_culprit=row.pair.index in culprits)


def _line(row: Row, *, is_culprit: bool) -> str:
    diff = row.diff
    weight = "font-weight:bold;" if is_culprit else ""
    bars = sparkline(diff.profile, _BARS) if diff else row.verdict.why
    cells = (
        str(row.pair.index), short(label(row.pair)), format_shape(row.shape),
        number(diff.max_abs if diff else None), number(diff.rel_l2 if diff else None),
    )  # fmt: skip
    text = "".join(f'<td style="text-align:left;{weight}">{escape(cell)}</td>' for cell in cells)
    mark = f'<td title="{escape(row.verdict.why)}">{_mark(row.verdict.name)}</td>'
    return f'<tr>{mark}{text}<td style="text-align:left;font-family:monospace;white-space:pre">{escape(bars)}</td></tr>'


def _mark(verdict: str) -> str:
    glyph = next(glyph for name, glyph in GLYPHS.items() if name == verdict)
    return f'<span style="color:{_COLOURS[verdict]}">{glyph}</span>'
