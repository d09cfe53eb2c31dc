"""The report as one self-contained HTML file: no network, no other file, no script but its own.

The page's content security policy names its script and style by their hashes, so even a name that slipped in as markup
could do nothing. Rows are embedded as JSON, column by column, and ``page/table.js`` draws only the visible ones, so
that ten thousand rows open as fast as ten. Parts that need no script, such as details and folded sections, are plain
HTML. All untrusted text is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.row import Row
from tensordiff.errors import printable
from tensordiff.report.comparison_json import strict
from tensordiff.report.labels import GLYPHS, component, counted, format_shape, label, number, sparkline
from tensordiff.report.model import DumpSummary, ReportModel, order_sentences, unread_sentences
from tensordiff.report.row_detail import Heat, RowDetail, element_cells
from tensordiff.util.sizes import format_percent

_SCRIPTS = ("data.js", "table.js", "plot.js", "heat.js", "main.js")
# The order must be that of the numbers in data.js.
_VERDICTS = ("agrees", "drifts", "diverges", "unknown")
_COMPONENTS = ("attention", "mlp", "norm", "embedding", "head", "block", "other")
_TABLE_BARS, _DETAIL_BARS = 16, 32
_MOST_ORPHANS = 1000
_SCENARIOS = """<label><input type="checkbox" data-scenario="plain" checked> without injection (filled)</label>
<label><input type="checkbox" data-scenario="injected" checked> with injection (hollow)</label>"""


def render(model: ReportModel) -> str:
    """The whole page."""
    style, script = _asset("style.css"), "".join(map(_asset, _SCRIPTS))
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'"
    return "\n".join((
        "<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}; form-action \'none\'">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(model.verdict)}: {escape(model.title)}</title>", f"<style>{style}</style>", "</head>",
        "<body>", "<main>", *_body(model), "</main>",
        f'<script type="application/json" id="data">{_embedded(page_data(model))}</script>',
        f"<script>{script}</script>", "</body>", "</html>", "",
    ))  # fmt: skip


def _asset(name: str) -> str:
    return files("tensordiff.report").joinpath("page", name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _body(model: ReportModel) -> Iterator[str]:
    yield from _head(model)
    yield from _details(model)
    yield from _plot(model)
    yield from _rows_table()
    yield from _folds(model)


def _head(model: ReportModel) -> Iterator[str]:
    glyph = f'<span class="verdict {model.verdict}">{GLYPHS[model.verdict]} {model.verdict}</span>'
    yield f"<header><h1>{glyph} · {escape(model.title)}</h1>"
    yield f'<p class="lead">{_sentence(model)}</p>'
    if model.scope or model.stamp:
        stamp = f" Written {model.stamp}." if model.stamp else ""
        yield f'<p class="soft">{escape(model.scope + stamp)}</p>'
    yield '<div class="sides">'
    yield _side("reference", model.reference)
    yield _side("candidate", model.candidate)
    yield f"</div>{_logits(model)}</header>"


def _sentence(model: ReportModel) -> str:
    before, name, after = model.sentence_parts
    return escape(before) + (f"<code>{escape(name)}</code>" if name else "") + escape(after)


def _side(name: str, side: DumpSummary) -> str:
    about = f"{side.format}, {counted(side.entries, 'tensor')}, {side.orphans} not paired"
    title = f'<span class="soft">{name}</span> <code>{escape(side.path)}</code>'
    return f'<div>{title}<br><span class="soft">{escape(about)}</span></div>'


def _logits(model: ReportModel) -> str:
    if model.logits is None:
        return ""
    found = model.logits
    same = f"top-1 the same {format_percent(found.top_1)}, top-{found.k} {format_percent(found.top_k)}"
    return f'<p class="soft">Logits of {found.tokens} tokens: {same}; worst KL {number(found.kl_div)}</p>'


def _plot(model: ReportModel) -> Iterator[str]:
    yield '<section class="card"><h2>Error along the run</h2><div class="tools">'
    yield '<select id="metric" aria-label="metric"><option value="mse">MSE</option>'
    yield '<option value="rel_l2">rel_l2</option></select>'
    yield _SCENARIOS if model.has_injected else ""
    yield '<span id="legend" class="tools"></span></div>'
    yield '<div class="plot"><canvas id="plot" role="img" aria-label="error of every output"></canvas>'
    yield '<div id="tip" class="tip" hidden></div></div>'
    yield '<p class="soft">Outputs in execution order, log axis. Drag to zoom, double-click for all, '
    yield "click a point for its row.</p></section>"


def _rows_table() -> Iterator[str]:
    yield '<section class="card"><h2>Every pair</h2><div class="tools">'
    yield '<input id="filter" type="search" placeholder="filter by layer, reason or name" aria-label="filter">'
    yield '<span id="verdicts" class="tools"></span>'
    yield '<label><input id="outputs" type="checkbox"> outputs only</label><span id="shown" class="soft"></span></div>'
    yield '<div id="scroll" class="scroll" tabindex="0" aria-label="pairs"><table><colgroup id="columns"></colgroup>'
    yield '<thead><tr id="headings"></tr></thead><tbody id="body"></tbody></table></div>'
    yield '<div id="detail" class="detail soft">Click a row for its names, types and views.</div>'
    yield "<noscript><p>The table and the plot need JavaScript, which this file carries.</p></noscript></section>"


# --- details, and what is folded away -----------------------------------------------------------------


def _details(model: ReportModel) -> Iterator[str]:
    """A card for each row that is shown in detail."""
    heats = 0
    for detail in model.details:
        title = "Culprit" if detail.row is model.outcome.culprit else "Selected"
        yield f'<section class="card"><h2>{title}: <code>{escape(label(detail.row.pair))}</code></h2>'
        yield '<div class="close"><div>'
        yield from _about(detail)
        yield "</div><div>"
        if detail.heat is not None:
            yield from _picture(detail, heats)
            heats += 1
        yield "</div></div></section>"


def _about(detail: RowDetail) -> Iterator[str]:
    row = detail.row
    yield f"<p>{_verdict(row)}: {_text(row.verdict.why)}</p>"
    if detail.hint is not None:
        yield f"<p><strong>Looks like</strong> {_text(detail.hint.sentence)}</p>"
    if detail.weights:
        yield f"<p><strong>Weights</strong> {_text(detail.weights)}</p>"
    sides = zip(("reference", "candidate"), (row.pair.reference, row.pair.candidate), detail.origins, strict=True)
    lines = [(side, f"<code>{_text(entry.name)}</code> {_text(origin)}") for side, entry, origin in sides]
    if detail.repro:
        lines.append(("repro", f"<code>{escape(detail.repro)}</code>"))
    if row.diff is not None:
        lines.append(("profile", f'<span class="spark">{sparkline(row.diff.profile, _DETAIL_BARS)}</span>'))
    lines += [("input", f"{_verdict(given)} <code>{escape(label(given.pair))}</code>") for given in detail.inputs]
    yield _table((), ((f'<span class="soft">{name}</span>', value) for name, value in lines))
    if detail.worst:
        yield "<h3>Largest errors</h3>"
        yield _table(("|Δ|", "reference", "candidate", "at"), map(element_cells, detail.worst))


def _picture(detail: RowDetail, at: int) -> Iterator[str]:
    heat = detail.heat
    if heat is None:
        return
    yield "<h3>Where the error is</h3>"
    yield f'<canvas class="heat" data-heat="{at}" role="img" aria-label="largest error by place"></canvas>'
    yield f'<div class="scale"><span>0</span><span>{heat.columns} channels (last axis) →</span>'
    yield f"<span>{heat.columns - 1}</span></div>"
    where = f"{counted(heat.rows, 'row')} (all other axes of {format_shape(detail.row.shape)}) from top to bottom"
    yield f'<p class="soft">{where}; the lighter the larger, on a log scale; black is equal, cyan not finite.</p>'


def _folds(model: ReportModel) -> Iterator[str]:
    """The folded sections: components, order, culprits and victims, doubts, orphans, settings."""
    yield '<section class="card"><h2>More</h2>'
    yield _fold("MSE of outputs by component", [_components(model)], is_open=True)
    yield _fold("Execution order verification", [f"<p>{escape(line)}</p>" for line in order_sentences(model.order)])
    if model.culprit_rows:
        yield _fold("Culprits and victims", _blame(model))
    doubts = [
        f"<p><strong>{f.level}</strong> {_text(f'{f.where} {f.what}')}; {_text(f.why)}; {_text(f.do)}</p>"
        for f in model.findings
    ]
    doubts += [f"<p><strong>error</strong> not read: {escape(line)}</p>" for line in unread_sentences(model.outcome)]
    doubts += [f"<p><strong>error</strong> {escape(sentence)}</p>" for sentence in model.outcome.doubts]
    yield _fold("Is the comparison fair?", doubts or ["<p>No warnings.</p>"])
    yield _fold(f"Not paired: {counted(len(model.orphans), 'tensor')}", [_orphans(model)])
    if model.notes:
        notes = (f"<p><code>{escape(name)}</code> {escape(text)}</p>" for name, text in model.notes)
        yield _fold("Notes", notes, is_open=True)
    yield _fold("Settings and versions", [_settings(model)])
    yield _fold(
        "Words", (f"<p><strong>{escape(word)}</strong> {escape(meaning)}</p>" for word, meaning in model.glossary)
    )
    yield "</section>"


def _fold(title: str, parts: Iterable[str], *, is_open: bool = False) -> str:
    return f"<details{' open' * is_open}><summary>{escape(title)}</summary>{''.join(parts)}</details>"


def _components(model: ReportModel) -> str:
    columns = ("min", "max", "mean", "median")
    return _table(("component", "pairs", *columns, "finite"), model.component_lines(columns))


def _blame(model: ReportModel) -> Iterator[str]:
    for title, rows in model.fault_groups:
        yield f"<h3>{title} ({len(rows)})</h3>"
        lines = ((_verdict(row), f"<code>{escape(label(row.pair))}</code>", _text(row.verdict.why)) for row in rows)
        yield _table((), lines)


def _orphans(model: ReportModel) -> str:
    shown = model.orphans[:_MOST_ORPHANS]
    more = len(model.orphans) - len(shown)
    lines = [(orphan.side, f"<code>{escape(orphan.name)}</code>", escape(orphan.why)) for orphan in shown]
    return _table((), lines) + (f"<p>and {more} more; the text report has all</p>" if more else "")


def _settings(model: ReportModel) -> str:
    said = _table((), ((escape(name), f"<code>{escape(value)}</code>") for name, value in model.settings))
    lines = "".join(_fact(*fact, differs=fact.differs) for fact in model.facts)
    head = "<tr><th></th><th>reference</th><th>candidate</th><th></th></tr>"
    return said + (f"<table>{head}{lines}</table>" if lines else "<p>Neither dump describes its run.</p>")


def _fact(name: str, reference: str, candidate: str, *, differs: bool) -> str:
    sign = "<td>≠</td>" if differs else "<td></td>"
    cells = "".join(f"<td>{escape(value) or '–'}</td>" for value in (name, reference, candidate))
    return f"<tr{' class=differs' * differs}>{cells}{sign}</tr>"


def _table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table; the cells must already be HTML."""
    head = f"<tr>{''.join(f'<th>{escape(heading)}</th>' for heading in headings)}</tr>" if headings else ""
    return f"<table>{head}{''.join(f'<tr>{_cells(cells)}</tr>' for cells in lines)}</table>"


def _cells(cells: Sequence[str]) -> str:
    return "".join(f"<td>{cell}</td>" for cell in cells)


def _verdict(row: Row) -> str:
    return f'<span class="verdict {row.verdict.name}">{GLYPHS[row.verdict.name]} {row.verdict.name}</span>'


def _text(text: str) -> str:
    return escape(printable(text))


# --- data for the page's script -----------------------------------------------------------------------


def _embedded(value: Any) -> str:
    """JSON for a script element: no ``<`` is left that a parser could read as a tag."""
    text = json.dumps(strict(value), allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_data(model: ReportModel) -> dict[str, Any]:
    """The data that the page's script draws."""
    culprit = next((k for k, row in enumerate(model.rows) if row is model.outcome.culprit), None)
    return {
        "rows": _columns(model),
        "culprit": culprit,
        "heats": [_heat(detail.heat) for detail in model.details if detail.heat is not None],
    }


def _columns(model: ReportModel) -> dict[str, list[Any]]:
    rows = model.rows
    columns: dict[str, list[Any]] = {
        "index": [row.pair.index for row in rows],
        "name": [label(row.pair) for row in rows],
        "verdict": [_VERDICTS.index(row.verdict.name) for row in rows],
        "why": [printable(row.verdict.why) for row in rows],
        "shape": [format_shape(row.shape) for row in rows],
        "component": [_COMPONENTS.index(component(row.pair.name)) for row in rows],
        "input": [int(row.is_input and not _only_inputs(model)) for row in rows],
        "mse": [_number(row.diff, "mse") for row in rows],
        "rel_l2": [_number(row.diff, "rel_l2") for row in rows],
        "max_abs": [_number(row.diff, "max_abs") for row in rows],
        "profile": [sparkline(row.diff.profile, _TABLE_BARS) if row.diff else "" for row in rows],
        "reference": [printable(row.pair.reference.name) for row in rows],
        "candidate": [printable(row.pair.candidate.name) for row in rows],
        "dtype": [_types(row) for row in rows],
        "by": [row.pair.by for row in rows],
        "views": [printable("; ".join(row.views)) for row in rows],
    }
    return columns | _injected(model) | _golden(model)


def _only_inputs(model: ReportModel) -> bool:
    return model.outputs is model.rows


def _injected(model: ReportModel) -> dict[str, list[Any]]:
    if not model.has_injected:
        return {}
    return {
        "injected": [_number(row.injected, "rel_l2") for row in model.rows],
        "injected_mse": [_number(row.injected, "mse") for row in model.rows],
    }


def _golden(model: ReportModel) -> dict[str, list[Any]]:
    return {"golden": [_rounded(row.golden_ratio) for row in model.rows]} if model.has_golden else {}


def _number(diff: Diff | None, field: str) -> float | None:
    return None if diff is None else _rounded(getattr(diff, field))


def _rounded(value: float | None) -> float | None:
    """Round to five digits; the JSON and the CSV have more."""
    return None if value is None else float(f"{value:.4e}")


def _types(row: Row) -> str:
    return "" if row.dtypes is None else " against ".join(dict.fromkeys(row.dtypes))


def _heat(heat: Heat) -> dict[str, Any]:
    return {"cells": [[_rounded(cell) for cell in line] for line in heat.cells]}
