"""The report as plain text: everything in execution order, for a terminal, a log or an attachment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from tensordiff.compare.row import Row
from tensordiff.errors import printable
from tensordiff.report.labels import (
    GLYPHS,
    counted,
    entry_label,
    format_shape,
    label,
    number,
    short,
    sparkline,
    verdict_text,
)
from tensordiff.report.model import DumpSummary, ReportModel, order_sentences, unread_sentences
from tensordiff.report.row_detail import RowDetail
from tensordiff.util.sizes import format_percent

_BARS = 32
Lines = Iterator[str]


def render(model: ReportModel) -> str:
    """The whole report."""
    sections = (
        _head(model), _compared(model), _order(model), _totals(model), _mse(model), _components(model),
        _details(model), _blame(model), _lint(model), _orphans(model), _table(model), _notes(model), _settings(model),
        _glossary(model),
    )  # fmt: skip
    return "\n".join(line.rstrip() for line in chain.from_iterable(sections)) + "\n"


def _head(model: ReportModel) -> Lines:
    yield model.title
    yield "=" * min(len(model.title), 100)
    yield ""
    yield model.sentence
    if model.scope:
        yield model.scope
    if model.stamp:
        yield f"Written {model.stamp}."


def _section(title: str) -> Lines:
    yield ""
    yield title
    yield "-" * len(title)


def _compared(model: ReportModel) -> Lines:
    yield from _section("Compared")
    yield _side("reference", model.reference)
    yield _side("candidate", model.candidate)
    yield f"verdict    {verdict_text(model.verdict)}"


def _side(name: str, side: DumpSummary) -> str:
    return f"{name:9}  {side.path}  ({side.format}, {counted(side.entries, 'tensor')}, {side.orphans} not paired)"


def _order(model: ReportModel) -> Lines:
    yield from _section("Execution order verification")
    yield from order_sentences(model.order)


def _totals(model: ReportModel) -> Lines:
    yield from _section("Totals")
    coverage = format_percent(model.coverage.share)
    yield f"pairs      {len(model.rows)}, of which {len(model.outputs)} outputs; coverage {coverage}"
    for name, count in model.counts.items():
        yield f"{name:9}  {GLYPHS[name]} {count}"
    if model.logits is not None:
        found = model.logits
        top_1, top_k = format_percent(found.top_1), format_percent(found.top_k)
        yield f"logits     of {found.tokens} tokens: top-1 the same {top_1}, top-{found.k} {top_k}"
        yield f"           worst kl_div {number(found.kl_div)}, cosine distance {number(found.cosine_distance)}"


def _mse(model: ReportModel) -> Lines:
    yield from _section("MSE statistics, of outputs")
    for name, value in model.statistics["mse"].items():
        yield f"{name:9}  {value if name == 'finite' else number(value)}"


def _components(model: ReportModel) -> Lines:
    yield from _section("Components: MSE of their outputs")
    yield f"{'component':10} {'pairs':>6} {'finite':>6} {'min':>8} {'max':>8} {'mean':>8} {'median':>8}"
    for name, about in model.statistics["components"].items():
        yield f"{name:10} {about['pairs']:>6} {_statistics(about['mse'])}"


def _statistics(mse: Mapping[str, Any]) -> str:
    numbers = " ".join(f"{number(mse[name]):>8}" for name in ("min", "max", "mean", "median"))
    return f"{mse['finite']:>6} {numbers}"


def _details(model: ReportModel) -> Lines:
    for detail in model.details:
        is_culprit = detail.row is model.outcome.culprit
        yield from _section(f"{'Culprit' if is_culprit else 'Selected'}: {short(label(detail.row.pair))}")
        yield from detail_lines(detail)


def detail_lines(detail: RowDetail) -> Lines:
    """One row in detail."""
    row = detail.row
    yield f"verdict    {verdict_text(row.verdict.name)}: {printable(row.verdict.why)}"
    entries = row.pair.reference, row.pair.candidate
    for side, entry, origin in zip(("reference", "candidate"), entries, detail.origins, strict=True):
        yield f"{side:9}  {entry_label(entry)}{f'  ({origin})' if origin else ''}"
    if detail.repro:
        yield f"repro      {detail.repro}"
    if detail.hint is not None:
        yield f"looks like {printable(detail.hint.sentence)}"
    if detail.weights:
        yield f"weights    {printable(detail.weights)}"
    if row.diff is not None:
        yield f"profile    {sparkline(row.diff.profile, _BARS)}"
    for given in detail.inputs:
        verdict = given.verdict
        yield f"input      {verdict_text(verdict.name)} {short(label(given.pair))}: {printable(verdict.why)}"
    if detail.worst:
        yield f"{'largest |Δ|':>12} {'reference':>15} {'candidate':>15}  at"
    for item in detail.worst:
        yield f"{item.error:>12.5g} {item.reference:>15.8g} {item.candidate:>15.8g}  {list(item.index)}"


def _blame(model: ReportModel) -> Lines:
    if model.culprit_rows:
        yield from _section("Culprits and victims")
    for title, rows in model.fault_groups:
        yield f"{title[0].lower()}{title[1:]} ({len(rows)})"
        for row in rows:
            yield f"  {verdict_text(row.verdict.name)} {short(label(row.pair))}: {printable(row.verdict.why)}"


def _lint(model: ReportModel) -> Lines:
    yield from _section("Is the comparison fair?")
    for finding in model.findings:
        where = f"{printable(finding.where)}: " if finding.where else ""
        yield f"{finding.level}: {where}{printable(finding.what)}; {finding.why}; {finding.do}"
    yield from (f"error: not read: {sentence}" for sentence in unread_sentences(model.outcome))
    yield from (f"error: {sentence}" for sentence in model.outcome.doubts)
    if not (model.findings or model.outcome.reasons):
        yield "sanity checks of headers, token ids, the embedding and the measured values: passed"


def _orphans(model: ReportModel) -> Lines:
    yield from _section("Not paired")
    for orphan in model.orphans:
        yield f"{orphan.side}: {short(orphan.name)}: {short(orphan.why)}"
    if not model.orphans:
        yield "nothing; every tensor has a partner"


def _table(model: ReportModel) -> Lines:
    yield from _section("Detailed results, in execution order")
    names = [short(label(row.pair)) for row in model.rows]
    shapes = [format_shape(row.shape) for row in model.rows]
    wide, broad = (min(60, max(map(len, column), default=5)) for column in (names, shapes))
    headings = ["mse", "rel_l2", "max|Δ|", *(["injected"] * model.has_injected), *(["golden×"] * model.has_golden)]
    numbers = " ".join(f"{heading:>8}" for heading in headings)
    yield f"  {'#':>5} {'layer':{wide}} {'shape':{broad}} {numbers}  why; views"
    for row, name, shape in zip(model.rows, names, shapes, strict=True):
        cells = " ".join(f"{cell:>8}" for cell in numbers_of(row, model))
        views = "; ".join(("", *map(printable, row.views)))
        glyph = GLYPHS[row.verdict.name]
        yield f"{glyph} {row.pair.index:>5} {name:{wide}} {shape:{broad}} {cells}  {printable(row.verdict.why)}{views}"


def numbers_of(row: Row, model: ReportModel) -> list[str]:
    """MSE, rel_l2, largest error and, if there are such runs, injected and golden numbers."""
    diff = row.diff
    cells = [None] * 3 if diff is None else [diff.mse, diff.rel_l2, diff.max_abs]
    injected = [row.injected.rel_l2 if row.injected else None] * model.has_injected
    golden = [row.golden_ratio] * model.has_golden
    return [number(cell) for cell in (*cells, *injected, *golden)]


def _notes(model: ReportModel) -> Lines:
    if model.notes:
        yield from _section("Notes")
    yield from (f"{short(name)}: {text}" for name, text in model.notes)


def _glossary(model: ReportModel) -> Lines:
    yield from _section("Words")
    yield from (f"{word:9}  {meaning}" for word, meaning in model.glossary)


def _settings(model: ReportModel) -> Lines:
    yield from _section("Settings and versions")
    for name, value in model.settings:
        yield f"{name}: {value}"
    for fact in model.facts:
        sides = f"reference {fact.reference or '-'}, candidate {fact.candidate or '-'}"
        same = fact.reference == fact.candidate
        yield f"{fact.name}: {fact.reference if same else sides}{' (differs)' if fact.differs else ''}"
