"""Text from outside inside Markdown: as code, as prose, in a table. The only place that knows what is markup there.

The report as Markdown, to be pasted into an issue or a pull request: short, with the detail folded away.

Names are code and nothing else: none can open a tag, end a cell, link, or call somebody by an ``@``.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from tensordiff.compare.row import Row
from tensordiff.errors import printable
from tensordiff.report.labels import GLYPHS, counted, label, number, shape_of, sparkline
from tensordiff.report.model import SideOf, Story, named_in, order_sentences
from tensordiff.report.row_detail import Close
from tensordiff.report.text import numbers_of

_PLAIN = re.compile(r"""[\w.,:;/()\[\]{} =+'"^$*?%#@!\\×·▁-█-]*\Z""")
_STRUCTURE = re.compile(r"([\\`*\[\]|~$]|(?<!\w)_|_(?!\w))")


def code(text: str, *, html: bool = False) -> str:
    """A name as code. One with any sign that could be markup is spelled in entities, which never are."""
    shown = printable(text)
    if shown and not html and _PLAIN.match(shown) and shown == shown.strip():
        return f"`{shown}`"
    return f"<code>{_entities(shown)}</code>"


def _entities(text: str) -> str:
    return "".join(c if c.isalnum() or c in " .,:;/=-" else f"&#{ord(c)};" for c in text)


def prose(text: str) -> str:
    """A sentence in which nothing is markup, and an ``@`` calls nobody."""
    escaped = _STRUCTURE.sub(r"\\\1", html.escape(printable(text), quote=False))
    return escaped.replace("@", "@<!-- -->").replace("://", ":<!-- -->//")


def table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table; its cells are escaped already."""
    yield _line(headings)
    yield _line(["---"] * len(headings))
    yield from (_line(cells) for cells in lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


MOST_ROWS = 200
"""Rows that are listed: trackers refuse what is longer than 65,536 characters."""
_FAULTS, _BARS = 10, 32
Lines = Iterator[str]


def markdown(story: Story) -> str:
    """The whole report."""
    sections = (
        _head(story), _compared(story), _faults(story), *(_close(close) for close in story.closes),
        _components(story), _rows(story), _unpaired(story), _settings(story),
    )  # fmt: skip
    return "\n".join(chain.from_iterable(sections)) + "\n"


def _head(story: Story) -> Lines:
    yield f"### {GLYPHS[story.verdict]} {story.verdict}: {prose(story.title)}"
    yield ""
    yield sentence_markdown(story)
    if story.scope or story.stamp:
        yield ""
        yield " ".join(filter(None, (story.scope, f"Written {prose(story.stamp)}." if story.stamp else "")))


def sentence_markdown(story: Story) -> str:
    """The first sentence, its layer in bold."""
    name = named_in(story.outcome)
    before, found, after = story.sentence.partition(name) if name else (story.sentence, "", "")
    return prose(before) + (f"**{code(found)}**" if found else "") + prose(after)


def _compared(story: Story) -> Lines:
    yield ""
    yield from table(
        ("", "dump", "format", "tensors", "not paired"),
        (_side("reference", story.reference), _side("candidate", story.candidate)),
    )
    counts = " · ".join(f"{GLYPHS[name]} {count} {name}" for name, count in story.counts.items() if count)
    yield ""
    yield f"{counted(len(story.rows), 'pair')}: {counts or 'none'}. Coverage {story.coverage:.0%}."
    yield from (prose(line) for line in list(order_sentences(story.order))[:1])
    if story.logits is not None:
        found = story.logits
        yield f"Logits of {found.tokens} tokens: top-1 the same {found.top_1:.1%}, worst KL {number(found.kl_div)}."
    for finding in story.findings:
        where = f"{code(finding.where)}: " if finding.where else ""
        yield f"**{finding.level}**: {where}{prose(finding.what)}; {prose(finding.do)}."


def _side(name: str, side: SideOf) -> tuple[str, ...]:
    return name, code(side.path), side.format, str(side.entries), str(side.orphans)


def _faults(story: Story) -> Lines:
    parts = (
        ("Culprits, wrong by themselves", story.culprits), ("Modules that a culprit lies in", story.holders),
        ("Victims of what came before", story.victims),
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


def _close(close: Close) -> Lines:
    return _fold(f"A closer look at {code(label(close.row.pair), html=True)}", _closely(close))


def _closely(close: Close) -> Lines:
    row = close.row
    yield f"{GLYPHS[row.verdict.name]} {row.verdict.name}: {prose(row.verdict.why)}"
    if close.hint is not None:
        yield ""
        yield f"Looks like: {prose(close.hint.sentence)}"
    for side, entry, origin in zip(
        ("reference", "candidate"), (row.pair.reference, row.pair.candidate), close.origins, strict=True
    ):
        yield f"- {side}: {code(entry.name)}{f' ({code(origin)})' if origin else ''}"
    if close.repro:
        yield f"- repro: {code(close.repro)}"
    for given in close.inputs:
        verdict = f"{GLYPHS[given.verdict.name]} {given.verdict.name}"
        yield f"- input {code(label(given.pair))}: {verdict}, {prose(given.verdict.why)}"
    if row.diff is not None:
        yield f"- profile: {code(sparkline(row.diff.profile, _BARS))}"
    if close.worst:
        yield ""
        cells = (
            (f"{e.error:.5g}", f"{e.reference:.8g}", f"{e.candidate:.8g}", str(list(e.index))) for e in close.worst
        )
        yield from table(("largest error", "reference", "candidate", "at"), cells)


def _components(story: Story) -> Lines:
    columns = ("min", "max", "mean", "median")
    every = [("all", len(story.outputs), story.statistics["mse"])]
    parts = ((name, about["pairs"], about["mse"]) for name, about in story.statistics["components"].items())
    lines = (
        (name, str(n), *(number(mse[c]) for c in columns), str(mse["finite"])) for name, n, mse in (*every, *parts)
    )
    return _fold("MSE of outputs, by component", table(("", "pairs", *columns, "finite"), lines))


def _rows(story: Story) -> Lines:
    extra = ("injected",) * story.has_injected + ("golden×",) * story.has_golden
    headings = ("", "#", "layer", "shape", "mse", "rel_l2", "max error", *extra, "views", "why")
    shown = _chosen(story.rows)
    lines = (_row(row, story) for row in shown)
    left = f", the worst {len(shown)} of them" if len(shown) < len(story.rows) else ""
    return _fold(f"{counted(len(story.rows), 'pair')} in execution order{left}", table(headings, lines))


def _chosen(rows: Sequence[Row]) -> Sequence[Row]:
    """As many rows as fit, those that do not agree first; in execution order."""
    if len(rows) <= MOST_ROWS:
        return rows
    rank = {"diverges": 0, "unknown": 1, "drifts": 2, "agrees": 3}
    kept = sorted(rows, key=lambda row: (rank[row.verdict.name], row.pair.index))[:MOST_ROWS]
    return sorted(kept, key=lambda row: row.pair.index)


def _row(row: Row, story: Story) -> tuple[str, ...]:
    views = ", ".join(code(view) for view in row.views)
    name = f"{GLYPHS[row.verdict.name]}", str(row.pair.index), code(label(row.pair)), shape_of(row.shape)
    return (*name, *numbers_of(row, story), views, prose(row.verdict.why))


def _unpaired(story: Story) -> Lines:
    if not story.orphans:
        return iter(())
    lines = (f"- {orphan.side}: {code(orphan.name)}: {prose(orphan.why)}" for orphan in story.orphans[:MOST_ROWS])
    return _fold(f"{counted(len(story.orphans), 'tensor')} not paired", lines)


def _settings(story: Story) -> Lines:
    both = ((code(fact.name), *_values(fact.reference, fact.candidate), "≠" * fact.differs) for fact in story.facts)
    said = ((code(name), code(value), "", "") for name, value in story.settings)
    return _fold("Settings and versions", table(("", "reference", "candidate", ""), chain(said, both)))


def _values(*sides: str) -> tuple[str, ...]:
    return tuple(code(side) if side else "-" for side in sides)
