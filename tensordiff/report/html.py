"""The report as one HTML file that needs nothing else: no network, no other file, and it runs no script but its own.

The page's policy names its script and style by their hashes: were a name to slip in as markup, it could still do
nothing. Rows travel as data and are drawn as they come in sight, so that ten thousand open as ten do.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from html import escape
from importlib.resources import files

from tensordiff.report.html_data import data_of, embedded
from tensordiff.report.html_parts import closes, folds
from tensordiff.report.sentence import named_in
from tensordiff.report.story import SideOf, Story
from tensordiff.report.words import GLYPHS, counted, number

_SCRIPTS = ("data.js", "table.js", "plot.js", "heat.js", "main.js")
_SCENARIOS = """<label><input type="checkbox" data-scenario="plain" checked> without injection (filled)</label>
<label><input type="checkbox" data-scenario="injected" checked> with injection (hollow)</label>"""


def html(story: Story) -> str:
    """The whole page."""
    style, script = _asset("style.css"), "".join(map(_asset, _SCRIPTS))
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'"
    return "\n".join((
        "<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}; form-action \'none\'">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(story.verdict)}: {escape(story.title)}</title>", f"<style>{style}</style>", "</head>",
        "<body>", "<main>", *_body(story), "</main>",
        f'<script type="application/json" id="data">{embedded(data_of(story))}</script>',
        f"<script>{script}</script>", "</body>", "</html>", "",
    ))  # fmt: skip


def _asset(name: str) -> str:
    return files("tensordiff.report").joinpath("page", name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _body(story: Story) -> Iterator[str]:
    yield from _head(story)
    yield from closes(story)
    yield from _plot(story)
    yield from _table()
    yield from folds(story)


def _head(story: Story) -> Iterator[str]:
    glyph = f'<span class="verdict {story.verdict}">{GLYPHS[story.verdict]} {story.verdict}</span>'
    yield f"<header><h1>{glyph} · {escape(story.title)}</h1>"
    yield f'<p class="lead">{_sentence(story)}</p>'
    if story.scope or story.stamp:
        stamp = f" Written {story.stamp}." if story.stamp else ""
        yield f'<p class="soft">{escape(story.scope + stamp)}</p>'
    yield '<div class="sides">'
    yield _side("reference", story.reference)
    yield _side("candidate", story.candidate)
    yield f"</div>{_logits(story)}</header>"


def _sentence(story: Story) -> str:
    name = named_in(story.outcome)
    before, found, after = story.sentence.partition(name) if name else (story.sentence, "", "")
    return escape(before) + (f"<code>{escape(found)}</code>" if found else "") + escape(after)


def _side(name: str, side: SideOf) -> str:
    about = f"{side.format}, {counted(side.entries, 'tensor')}, {side.orphans} not paired"
    title = f'<span class="soft">{name}</span> <code>{escape(side.path)}</code>'
    return f'<div>{title}<br><span class="soft">{escape(about)}</span></div>'


def _logits(story: Story) -> str:
    if story.logits is None:
        return ""
    found = story.logits
    same = f"top-1 the same {found.top_1:.1%}, top-{found.k} {found.top_k:.1%}"
    return f'<p class="soft">Logits of {found.tokens} tokens: {same}; worst KL {number(found.kl_div)}</p>'


def _plot(story: Story) -> Iterator[str]:
    yield '<section class="card"><h2>Error along the run</h2><div class="tools">'
    yield '<select id="metric" aria-label="metric"><option value="mse">MSE</option>'
    yield '<option value="rel_l2">rel_l2</option></select>'
    yield _SCENARIOS if story.has_injected else ""
    yield '<span id="legend" class="tools"></span></div>'
    yield '<div class="plot"><canvas id="plot" role="img" aria-label="error of every output"></canvas>'
    yield '<div id="tip" class="tip" hidden></div></div>'
    yield '<p class="soft">Outputs in execution order, log axis. Drag to zoom, double-click for all, '
    yield "click a point for its row.</p></section>"


def _table() -> Iterator[str]:
    yield '<section class="card"><h2>Every pair</h2><div class="tools">'
    yield '<input id="filter" type="search" placeholder="filter by layer, reason or name" aria-label="filter">'
    yield '<span id="verdicts" class="tools"></span>'
    yield '<label><input id="outputs" type="checkbox"> outputs only</label><span id="shown" class="soft"></span></div>'
    yield '<div id="scroll" class="scroll" tabindex="0" aria-label="pairs"><table><colgroup id="columns"></colgroup>'
    yield '<thead><tr id="headings"></tr></thead><tbody id="body"></tbody></table></div>'
    yield '<div id="detail" class="detail soft">Click a row for its names, types and views.</div>'
    yield "<noscript><p>The table and the plot need JavaScript, which this file carries.</p></noscript></section>"
