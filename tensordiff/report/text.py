"""The report as plain text: everything, in execution order, for a terminal, a log or an attachment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from tensordiff.compare.row import Row
from tensordiff.errors import printable
from tensordiff.report.labels import GLYPHS, counted, label, name_of, number, shape_of, short, sparkline
from tensordiff.report.model import SideOf, Story, order_sentences
from tensordiff.report.row_detail import Close

_BARS = 32
Lines = Iterator[str]


def text(story: Story) -> str:
    """The whole report."""
    sections = (
        _head(story), _compared(story), _order(story), _totals(story), _mse(story), _components(story),
        _closes(story), _blame(story), _lint(story), _orphans(story), _details(story), _settings(story),
    )  # fmt: skip
    return "\n".join(line.rstrip() for line in chain.from_iterable(sections)) + "\n"


def _head(story: Story) -> Lines:
    yield story.title
    yield "=" * min(len(story.title), 100)
    yield ""
    yield story.sentence
    if story.scope:
        yield story.scope
    if story.stamp:
        yield f"Written {story.stamp}."


def _section(title: str) -> Lines:
    yield ""
    yield title
    yield "-" * len(title)


def _compared(story: Story) -> Lines:
    yield from _section("Compared")
    yield _side("reference", story.reference)
    yield _side("candidate", story.candidate)
    yield f"verdict    {GLYPHS[story.verdict]} {story.verdict}"


def _side(name: str, side: SideOf) -> str:
    return f"{name:9}  {side.path}  ({side.format}, {counted(side.entries, 'tensor')}, {side.orphans} not paired)"


def _order(story: Story) -> Lines:
    yield from _section("Execution order verification")
    yield from order_sentences(story.order)


def _totals(story: Story) -> Lines:
    yield from _section("Totals")
    yield f"pairs      {len(story.rows)}, of which {len(story.outputs)} outputs; coverage {story.coverage:.0%}"
    for name, count in story.counts.items():
        yield f"{name:9}  {GLYPHS[name]} {count}"
    if story.logits is not None:
        found = story.logits
        yield f"logits     of {found.tokens} tokens: top-1 the same {found.top_1:.1%}, top-{found.k} {found.top_k:.1%}"
        yield f"           worst kl_div {number(found.kl_div)}, cosine distance {number(found.cosine_distance)}"


def _mse(story: Story) -> Lines:
    yield from _section("MSE statistics, of outputs")
    for name, value in story.statistics["mse"].items():
        yield f"{name:9}  {value if name == 'finite' else number(value)}"


def _components(story: Story) -> Lines:
    yield from _section("Components: MSE of their outputs")
    yield f"{'component':10} {'pairs':>6} {'finite':>6} {'min':>8} {'max':>8} {'mean':>8} {'median':>8}"
    for name, about in story.statistics["components"].items():
        yield f"{name:10} {about['pairs']:>6} {_statistics(about['mse'])}"


def _statistics(mse: Mapping[str, Any]) -> str:
    numbers = " ".join(f"{number(mse[name]):>8}" for name in ("min", "max", "mean", "median"))
    return f"{mse['finite']:>6} {numbers}"


def _closes(story: Story) -> Lines:
    for close in story.closes:
        is_culprit = close.row is story.outcome.culprit
        yield from _section(f"{'Culprit' if is_culprit else 'Selected'}: {short(label(close.row.pair))}")
        yield from close_lines(close)


def close_lines(close: Close) -> Lines:
    """One row, closely, as lines of text."""
    row = close.row
    yield f"verdict    {GLYPHS[row.verdict.name]} {row.verdict.name}: {printable(row.verdict.why)}"
    entries = row.pair.reference, row.pair.candidate
    for side, entry, origin in zip(("reference", "candidate"), entries, close.origins, strict=True):
        yield f"{side:9}  {name_of(entry)}{f'  ({origin})' if origin else ''}"
    if close.repro:
        yield f"repro      {close.repro}"
    if close.hint is not None:
        yield f"looks like {printable(close.hint.sentence)}"
    if row.diff is not None:
        yield f"profile    {sparkline(row.diff.profile, _BARS)}"
    for given in close.inputs:
        yield f"input      {_verdict(given)} {short(label(given.pair))}: {printable(given.verdict.why)}"
    if close.worst:
        yield f"{'largest |Δ|':>12} {'reference':>15} {'candidate':>15}  at"
    for item in close.worst:
        yield f"{item.error:>12.5g} {item.reference:>15.8g} {item.candidate:>15.8g}  {list(item.index)}"


def _verdict(row: Row) -> str:
    return f"{GLYPHS[row.verdict.name]} {row.verdict.name}"


def _blame(story: Story) -> Lines:
    parts = (
        ("culprits: wrong by themselves", story.culprits), ("modules that a culprit lies in", story.holders),
        ("victims: wrong because of what came before", story.victims),
    )  # fmt: skip
    if story.culprits:
        yield from _section("Culprits and victims")
    for title, rows in parts:
        if rows:
            yield f"{title} ({len(rows)})"
        for row in rows:
            yield f"  {_verdict(row)} {short(label(row.pair))}: {printable(row.verdict.why)}"


def _lint(story: Story) -> Lines:
    yield from _section("Is the comparison fair?")
    for finding in story.findings:
        where = f"{printable(finding.where)}: " if finding.where else ""
        yield f"{finding.level}: {where}{printable(finding.what)}; {finding.why}; {finding.do}"
    yield from (f"error: not read: {sentence}" for sentence in story.outcome.unread)
    if not (story.findings or story.outcome.unread):
        yield "nothing found in headers, token ids, the embedding and what was measured"


def _orphans(story: Story) -> Lines:
    yield from _section("Not paired")
    for orphan in story.orphans:
        yield f"{orphan.side}: {short(orphan.name)}: {short(orphan.why)}"
    if not story.orphans:
        yield "nothing; every tensor has its partner"


def _details(story: Story) -> Lines:
    yield from _section("Detailed results, in execution order")
    names = [short(label(row.pair)) for row in story.rows]
    shapes = [shape_of(row.shape) for row in story.rows]
    wide, broad = (min(60, max(map(len, column), default=5)) for column in (names, shapes))
    headings = ["mse", "rel_l2", "max|Δ|", *(["injected"] * story.has_injected), *(["golden×"] * story.has_golden)]
    numbers = " ".join(f"{heading:>8}" for heading in headings)
    yield f"  {'#':>5} {'layer':{wide}} {'shape':{broad}} {numbers}  why; views"
    for row, name, shape in zip(story.rows, names, shapes, strict=True):
        cells = " ".join(f"{cell:>8}" for cell in numbers_of(row, story))
        views = "; ".join(("", *map(printable, row.views)))
        glyph = GLYPHS[row.verdict.name]
        yield f"{glyph} {row.pair.index:>5} {name:{wide}} {shape:{broad}} {cells}  {printable(row.verdict.why)}{views}"


def numbers_of(row: Row, story: Story) -> list[str]:
    """MSE, rel_l2, largest error and, where there are such runs, injected and golden."""
    diff = row.diff
    cells = [None] * 3 if diff is None else [diff.mse, diff.rel_l2, diff.max_abs]
    injected = [row.injected.rel_l2 if row.injected else None] * story.has_injected
    golden = [row.golden_ratio] * story.has_golden
    return [number(cell) for cell in (*cells, *injected, *golden)]


def _settings(story: Story) -> Lines:
    yield from _section("Settings and versions")
    for name, value in story.settings:
        yield f"{name}: {value}"
    for fact in story.facts:
        sides = f"reference {fact.reference or '-'}, candidate {fact.candidate or '-'}"
        same = fact.reference == fact.candidate
        yield f"{fact.name}: {fact.reference if same else sides}{' (differs)' if fact.differs else ''}"
