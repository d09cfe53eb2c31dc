"""The report as Markdown for an issue or a pull request: short, with the details folded away.

Only ``code``, ``prose`` and ``table`` know Markdown's markup. They make sure that an untrusted name cannot open a tag,
end a table cell, make a link, or notify somebody with an ``@``.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from tensordiff.compare.row import Row
from tensordiff.errors import printable
from tensordiff.report.labels import GLYPHS, counted, format_shape, label, number, sparkline, verdict_text
from tensordiff.report.model import DumpSummary, ReportModel, order_sentences, unread_sentences
from tensordiff.report.row_detail import RowDetail, element_cells
from tensordiff.report.text import numbers_of
from tensordiff.util.sizes import format_percent

_PLAIN = re.compile(r"""[\w.,:;/()\[\]{} =+'"^$*?%#@!\\×·▁-█-]*\Z""")
_STRUCTURE = re.compile(r"([\\`*\[\]|~$]|(?<!\w)_|_(?!\w))")


def code(text: str, *, html: bool = False) -> str:
    """A name as code. If it has a character that could be markup, it is spelled in HTML entities, which never are."""
    shown = printable(text)
    if shown and not html and _PLAIN.match(shown) and shown == shown.strip():
        return f"`{shown}`"
    return f"<code>{_entities(shown)}</code>"


def _entities(text: str) -> str:
    return "".join(c if c.isalnum() or c in " .,:;/=-" else f"&#{ord(c)};" for c in text)


def prose(text: str) -> str:
    """A sentence in which nothing is markup and ``@`` notifies nobody."""
    escaped = _STRUCTURE.sub(r"\\\1", html.escape(printable(text), quote=False))
    return escaped.replace("@", "@<!-- -->").replace("://", ":<!-- -->//")


def table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table; the cells must already be escaped."""
    yield _line(headings)
    yield _line(["---"] * len(headings))
    yield from (_line(cells) for cells in lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


MOST_ROWS = 200
"""Rows that are listed; issue trackers refuse text longer than 65,536 characters."""
_FAULTS, _BARS = 10, 32
Lines = Iterator[str]


def render(model: ReportModel) -> str:
    """The whole report."""
    sections = (
        _head(model), _compared(model), _faults(model), *(_detail(detail) for detail in model.details),
        _components(model), _rows(model), _unpaired(model), _notes(model), _settings(model), _glossary(model),
    )  # fmt: skip
    return "\n".join(chain.from_iterable(sections)) + "\n"


def _head(model: ReportModel) -> Lines:
    yield f"### {verdict_text(model.verdict)}: {prose(model.title)}"
    yield ""
    yield sentence_markdown(model)
    if model.scope or model.stamp:
        yield ""
        yield " ".join(filter(None, (model.scope, f"Written {prose(model.stamp)}." if model.stamp else "")))


def sentence_markdown(model: ReportModel) -> str:
    """The first sentence, with its layer in bold."""
    before, name, after = model.sentence_parts
    return prose(before) + (f"**{code(name)}**" if name else "") + prose(after)


def _compared(model: ReportModel) -> Lines:
    yield ""
    yield from table(
        ("", "dump", "format", "tensors", "not paired"),
        (_side("reference", model.reference), _side("candidate", model.candidate)),
    )
    counts = " · ".join(f"{GLYPHS[name]} {count} {name}" for name, count in model.counts.items() if count)
    yield ""
    yield f"{counted(len(model.rows), 'pair')}: {counts or 'none'}. Coverage {format_percent(model.coverage.share)}."
    yield from (prose(line) for line in list(order_sentences(model.order))[:1])
    if model.logits is not None:
        found = model.logits
        same = f"top-1 the same {format_percent(found.top_1)}"
        yield f"Logits of {found.tokens} tokens: {same}, worst KL {number(found.kl_div)}."
    doubts = (*unread_sentences(model.outcome), *model.outcome.doubts)
    yield from (f"**error**: {prose(sentence)}." for sentence in doubts)
    for finding in model.findings:
        where = f"{code(finding.where)}: " if finding.where else ""
        yield f"**{finding.level}**: {where}{prose(finding.what)}; {prose(finding.do)}."


def _side(name: str, side: DumpSummary) -> tuple[str, ...]:
    return name, code(side.path), side.format, str(side.entries), str(side.orphans)


def _faults(model: ReportModel) -> Lines:
    parts = (
        ("Culprits, wrong by themselves", model.culprit_rows), ("Modules that contain a culprit", model.enclosing),
        ("Victims of what came before", model.victims),
    )  # fmt: skip
    for title, rows in parts:
        if rows:
            more = f" and {len(rows) - _FAULTS} more" if len(rows) > _FAULTS else ""
            yield ""
            yield f"**{title}** ({len(rows)}): " + ", ".join(code(label(row.pair)) for row in rows[:_FAULTS]) + more


def _fold(title: str, lines: Iterator[str]) -> Lines:
    yield ""
    yield f"<details><summary>{title}</summary>"
    yield ""
    yield from lines
    yield ""
    yield "</details>"


def _detail(detail: RowDetail) -> Lines:
    return _fold(f"A closer look at {code(label(detail.row.pair), html=True)}", _detail_lines(detail))


def _detail_lines(detail: RowDetail) -> Lines:
    row = detail.row
    yield f"{verdict_text(row.verdict.name)}: {prose(row.verdict.why)}"
    if detail.hint is not None:
        yield ""
        yield f"Looks like: {prose(detail.hint.sentence)}"
    if detail.weights:
        yield ""
        yield f"Weights: {prose(detail.weights)}"
    for side, entry, origin in zip(
        ("reference", "candidate"), (row.pair.reference, row.pair.candidate), detail.origins, strict=True
    ):
        yield f"- {side}: {code(entry.name)}{f' ({code(origin)})' if origin else ''}"
    if detail.repro:
        yield f"- repro: {code(detail.repro)}"
    for given in detail.inputs:
        verdict = verdict_text(given.verdict.name)
        yield f"- input {code(label(given.pair))}: {verdict}, {prose(given.verdict.why)}"
    if row.diff is not None:
        yield f"- profile: {code(sparkline(row.diff.profile, _BARS))}"
    if detail.worst:
        yield ""
        yield from table(("largest error", "reference", "candidate", "at"), map(element_cells, detail.worst))


def _components(model: ReportModel) -> Lines:
    columns = ("min", "max", "mean", "median")
    lines = table(("", "pairs", *columns, "finite"), model.component_lines(columns))
    return _fold("MSE of outputs, by component", lines)


def _rows(model: ReportModel) -> Lines:
    extra = ("injected",) * model.has_injected + ("golden×",) * model.has_golden
    headings = ("", "#", "layer", "shape", "mse", "rel_l2", "max error", *extra, "views", "why")
    shown = _chosen(model.rows)
    lines = (_row(row, model) for row in shown)
    left = f", the worst {len(shown)} of them" if len(shown) < len(model.rows) else ""
    return _fold(f"{counted(len(model.rows), 'pair')} in execution order{left}", table(headings, lines))


def _chosen(rows: Sequence[Row]) -> Sequence[Row]:
    """As many rows as fit, those that do not agree first, returned in execution order."""
    if len(rows) <= MOST_ROWS:
        return rows
    rank = {"diverges": 0, "unknown": 1, "drifts": 2, "agrees": 3}
    kept = sorted(rows, key=lambda row: (rank[row.verdict.name], row.pair.index))[:MOST_ROWS]
    return sorted(kept, key=lambda row: row.pair.index)


def _row(row: Row, model: ReportModel) -> tuple[str, ...]:
    views = ", ".join(code(view) for view in row.views)
    name = f"{GLYPHS[row.verdict.name]}", str(row.pair.index), code(label(row.pair)), format_shape(row.shape)
    return (*name, *numbers_of(row, model), views, prose(row.verdict.why))


def _unpaired(model: ReportModel) -> Lines:
    if not model.orphans:
        return iter(())
    lines = (f"- {orphan.side}: {code(orphan.name)}: {prose(orphan.why)}" for orphan in model.orphans[:MOST_ROWS])
    return _fold(f"{counted(len(model.orphans), 'tensor')} not paired", lines)


def _notes(model: ReportModel) -> Lines:
    if model.notes:
        yield ""
        yield "**Notes**"
        yield ""
        yield from (f"- {code(name)}: {prose(text)}" for name, text in model.notes)


def _glossary(model: ReportModel) -> Lines:
    return _fold("Words", (f"- **{word}**: {prose(meaning)}" for word, meaning in model.glossary))


def _settings(model: ReportModel) -> Lines:
    both = ((code(fact.name), *_values(fact.reference, fact.candidate), "≠" * fact.differs) for fact in model.facts)
    said = ((code(name), code(value), "", "") for name, value in model.settings)
    return _fold("Settings and versions", table(("", "reference", "candidate", ""), chain(said, both)))


def _values(*sides: str) -> tuple[str, ...]:
    return tuple(code(side) if side else "-" for side in sides)
