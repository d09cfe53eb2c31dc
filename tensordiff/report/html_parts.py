"""The parts of the page that need no script: close-ups, and what is folded away. Everything from outside is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from tensordiff.compare.engine import Row
from tensordiff.errors import printable
from tensordiff.report.close import Close
from tensordiff.report.order_words import order_sentences
from tensordiff.report.sparkline import sparkline
from tensordiff.report.story import Story
from tensordiff.report.words import GLYPHS, counted, label, number, shape_of

_BARS, _MOST_ORPHANS = 32, 1000


def closes(story: Story) -> Iterator[str]:
    """A card for each row that is looked at closely."""
    heats = 0
    for close in story.closes:
        title = "Culprit" if close.row is story.outcome.culprit else "Selected"
        yield f'<section class="card"><h2>{title}: <code>{escape(label(close.row.pair))}</code></h2>'
        yield '<div class="close"><div>'
        yield from _about(close)
        yield "</div><div>"
        if close.heat is not None:
            yield from _picture(close, heats)
            heats += 1
        yield "</div></div></section>"


def _about(close: Close) -> Iterator[str]:
    row = close.row
    yield f"<p>{_verdict(row)}: {_text(row.verdict.why)}</p>"
    if close.hint is not None:
        yield f"<p><strong>Looks like</strong> {_text(close.hint.sentence)}</p>"
    sides = zip(("reference", "candidate"), (row.pair.reference, row.pair.candidate), close.origins, strict=True)
    lines = [(side, f"<code>{_text(entry.name)}</code> {_text(origin)}") for side, entry, origin in sides]
    if close.repro:
        lines.append(("repro", f"<code>{escape(close.repro)}</code>"))
    if row.diff is not None:
        lines.append(("profile", f'<span class="spark">{sparkline(row.diff.profile, _BARS)}</span>'))
    lines += [("input", f"{_verdict(given)} <code>{escape(label(given.pair))}</code>") for given in close.inputs]
    yield _table((), ((f'<span class="soft">{name}</span>', value) for name, value in lines))
    if close.worst:
        yield "<h3>Largest errors</h3>"
        numbers = (
            (f"{e.error:.5g}", f"{e.reference:.8g}", f"{e.candidate:.8g}", str(list(e.index))) for e in close.worst
        )
        yield _table(("|Δ|", "reference", "candidate", "at"), numbers)


def _picture(close: Close, at: int) -> Iterator[str]:
    heat = close.heat
    if heat is None:
        return
    yield "<h3>Where the error is</h3>"
    yield f'<canvas class="heat" data-heat="{at}" role="img" aria-label="largest error by place"></canvas>'
    yield f'<div class="scale"><span>0</span><span>{heat.columns} channels (last axis) →</span>'
    yield f"<span>{heat.columns - 1}</span></div>"
    where = f"{counted(heat.rows, 'row')} (all other axes of {shape_of(close.row.shape)}) from top to bottom"
    yield f'<p class="soft">{where}; the lighter the larger, on a log scale; black is equal, cyan not finite.</p>'


def folds(story: Story) -> Iterator[str]:
    """Components, order, culprits and victims, what is doubtful, orphans, settings."""
    yield '<section class="card"><h2>More</h2>'
    yield _fold("MSE of outputs by component", [_components(story)], is_open=True)
    yield _fold("Execution order verification", [f"<p>{escape(line)}</p>" for line in order_sentences(story.order)])
    if story.culprits:
        yield _fold("Culprits and victims", _blame(story))
    doubts = [
        f"<p><strong>{f.level}</strong> {_text(f'{f.where} {f.what}')}; {_text(f.why)}; {_text(f.do)}</p>"
        for f in story.findings
    ]
    doubts += [f"<p><strong>error</strong> not read: {escape(sentence)}</p>" for sentence in story.outcome.unread]
    yield _fold("Is the comparison fair?", doubts or ["<p>Nothing was found against it.</p>"])
    yield _fold(f"Not paired: {counted(len(story.orphans), 'tensor')}", [_orphans(story)])
    yield _fold("Settings and versions", [_settings(story)])
    yield "</section>"


def _fold(title: str, parts: Iterable[str], *, is_open: bool = False) -> str:
    return f"<details{' open' * is_open}><summary>{escape(title)}</summary>{''.join(parts)}</details>"


def _components(story: Story) -> str:
    columns = ("min", "max", "mean", "median")
    every = [("all", len(story.outputs), story.statistics["mse"])]
    parts = [(name, about["pairs"], about["mse"]) for name, about in story.statistics["components"].items()]
    lines = (
        (name, str(n), *(number(mse[c]) for c in columns), str(mse["finite"])) for name, n, mse in (*every, *parts)
    )
    return _table(("component", "pairs", *columns, "finite"), lines)


def _blame(story: Story) -> Iterator[str]:
    parts = (("Culprits: wrong by themselves", story.culprits), ("Modules that a culprit lies in", story.holders),
             ("Victims: wrong because of what came before", story.victims))  # fmt: skip
    for title, rows in parts:
        if rows:
            yield f"<h3>{title} ({len(rows)})</h3>"
            lines = ((_verdict(row), f"<code>{escape(label(row.pair))}</code>", _text(row.verdict.why)) for row in rows)
            yield _table((), lines)


def _orphans(story: Story) -> str:
    shown = story.orphans[:_MOST_ORPHANS]
    more = len(story.orphans) - len(shown)
    lines = [(orphan.side, f"<code>{escape(orphan.name)}</code>", escape(orphan.why)) for orphan in shown]
    return _table((), lines) + (f"<p>and {more} more; the text report has all</p>" if more else "")


def _settings(story: Story) -> str:
    said = _table((), ((escape(name), f"<code>{escape(value)}</code>") for name, value in story.settings))
    lines = "".join(_fact(*fact, differs=fact.differs) for fact in story.facts)
    head = "<tr><th></th><th>reference</th><th>candidate</th><th></th></tr>"
    return said + (f"<table>{head}{lines}</table>" if lines else "<p>Neither dump says anything of its run.</p>")


def _fact(name: str, reference: str, candidate: str, *, differs: bool) -> str:
    sign = "<td>≠</td>" if differs else "<td></td>"
    cells = "".join(f"<td>{escape(value) or '–'}</td>" for value in (name, reference, candidate))
    return f"<tr{' class=differs' * differs}>{cells}{sign}</tr>"


def _table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Cells are HTML already."""
    head = f"<tr>{''.join(f'<th>{escape(heading)}</th>' for heading in headings)}</tr>" if headings else ""
    return f"<table>{head}{''.join(f'<tr>{_cells(cells)}</tr>' for cells in lines)}</table>"


def _cells(cells: Sequence[str]) -> str:
    return "".join(f"<td>{cell}</td>" for cell in cells)


def _verdict(row: Row) -> str:
    return f'<span class="verdict {row.verdict.name}">{GLYPHS[row.verdict.name]} {row.verdict.name}</span>'


def _text(text: str) -> str:
    return escape(printable(text))
