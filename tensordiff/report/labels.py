"""The spelling of pairs, numbers, shapes, verdicts, components and error profiles, in the app, the CLI and reports.

Names are untrusted: every text that is returned here is one printable line. Escaping markup (``<`` in HTML, ``|`` in
Markdown, a leading ``=`` in a spreadsheet) is left to each format.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from tensordiff.align.index import part_on
from tensordiff.align.match import Pair
from tensordiff.compare.judge.verdict import VerdictName
from tensordiff.dump.model import Entry
from tensordiff.errors import printable
from tensordiff.util.text_width import cut_middle

if TYPE_CHECKING:  # importing it is slow, and few commands need it
    from tensordiff.weights.comparison import ParameterRow, WeightVerdict

GLYPHS: dict[VerdictName, str] = {"agrees": "✓", "drifts": "~", "diverges": "✗", "unknown": "?"}
"""A glyph for each verdict, so that colour is never the only sign."""
COLOURS: dict[VerdictName, str] = {"agrees": "green", "drifts": "yellow", "diverges": "red", "unknown": "magenta"}
"""Terminal colours; the HTML page's are in ``page/style.css``."""
LEVELS = {"error": ("✗", "red"), "warning": ("!", "yellow"), "note": ("·", "cyan")}
"""Glyph and colour for each level of a lint finding."""
_OPERATION = re.compile(r"/(?:op|fn)_\d+_([^/]*)$")
_NUMBER = 8
_NAMELESS = "(no name)"
_LONGEST = 300


def glyph_of(verdict: str) -> str:
    """The glyph of a verdict that was read from a file."""
    return next(glyph for name, glyph in GLYPHS.items() if name == verdict)


def verdict_text(verdict: VerdictName) -> str:
    """A verdict with its glyph: ``✗ diverges``."""
    return f"{GLYPHS[verdict]} {verdict}"


def label(pair: Pair) -> str:
    """The label of a pair: layer, port unless it is the output, call and step unless they are the first."""
    entry = pair.reference
    port = () if entry.port in ("output", "output_0") else (entry.port,)
    call = () if entry.call == 1 else (f"call {entry.call}",)
    step = () if entry.step == 0 else (f"step {entry.step}",)
    return printable(" ".join((pair_name(pair), *port, *shown_views(pair), *call, *step)))


def shown_views(pair: Pair) -> list[str]:
    """The views that gave both sides one shape, each in brackets; first the part of the reference that a map takes."""
    return [f"[{view}]" for view in (part_on(pair.reference), *pair.views) if view]


def pair_name(pair: Pair) -> str:
    """The layer of a pair; if the two sides are different operations, both are named."""
    return printable(f"{pair.name or _NAMELESS}{_other_operation(pair)}")


def _other_operation(pair: Pair) -> str:
    """The candidate's operation, if it differs from the reference's."""
    if "/" not in pair.reference.layer:
        return ""
    ours, theirs = (_OPERATION.search(entry.layer) for entry in (pair.reference, pair.candidate))
    return "" if ours is None or theirs is None or ours[1] == theirs[1] else f" ↔ {theirs[1]}"


def entry_label(entry: Entry) -> str:
    """The name of an entry in its dump."""
    return printable(entry.name or _NAMELESS)


def short(text: str) -> str:
    """Shorten a name for a line that says more: of more than 300 characters the middle is cut out."""
    return cut_middle(text, _LONGEST, len)


def number(value: float | None) -> str:
    """A number in at most eight characters, nine with a sign; ``-`` for None."""
    if value is None:
        return "-"
    text = "0" if value == 0 else f"{value:.2e}"
    return text if len(text.lstrip("-")) <= _NUMBER else f"{value:.1e}"


def format_shape(shape: Sequence[int] | None) -> str:
    """A shape as Python spells a list; ``-`` if the two sides have no common shape."""
    return "-" if shape is None else str(list(shape))


def counted(count: int, noun: str) -> str:
    """A count with its noun: ``1 pair``, ``2 pairs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


_COMPONENTS = (
    ("norm", re.compile(r"norm(?:\d|_|\b)|(?:^|[._])ln_?[\w]*$", re.I)),
    ("attention", re.compile(r"attn|attention|(?:^|\.)[qkvo]_?proj|qkv|rotary|rope", re.I)),
    ("mlp", re.compile(r"mlp|feed_?forward|ffn|expert|intermediate|act_fn|(?:^|\.)(?:fc\d|gate|up|down)\b", re.I)),
    ("embedding", re.compile(r"embed|(?:^|\.)w[tp]e$", re.I)),
    ("head", re.compile(r"(?:^|\.)(?:lm_)?head|pooler|classifier|logits", re.I)),
    ("block", re.compile(r"(?:^|\.)(?:layers?|blocks?|h)\.\d+$")),
)  # fmt: skip


@lru_cache(maxsize=1 << 16)
def component(layer: str) -> str:
    """The part of a network that a layer belongs to: attention, mlp, norm, embedding, head, block or other.

    The last part of the name is tried first, then the whole name.
    """
    last = layer.rpartition(".")[2]
    for text in (last, layer):
        for name, pattern in _COMPONENTS:
            if pattern.search(text):
                return name
    return "other"


BARS = "▁▂▃▄▅▆▇█"
LOWEST, HIGHEST = -8.0, 0.0
"""log10 of the relative errors that the lowest and the highest bar represent."""


def sparkline(profile: Sequence[float], width: int) -> str:
    """A profile as characters: ``·`` no error, bars by size, ``×`` NaN, ``∞`` infinite; all rows share one log
    scale."""
    return "".join(_bar(value) for value in shrink(profile, width))


def shrink(profile: Sequence[float], width: int) -> list[float]:
    """The largest value of each of at most ``width`` stretches; NaN counts as largest."""
    count = min(width, len(profile))
    cuts = [len(profile) * k // count for k in range(count + 1)] if count else [0]
    return [max(profile[a:b], key=nan_rank) for a, b in pairwise(cuts)]


def nan_rank(value: float) -> tuple[bool, float]:
    """A sort key for errors under which NaN is largest."""
    return math.isnan(value), value


def _bar(value: float) -> str:
    if math.isnan(value):
        return "×"
    if math.isinf(value):
        return "∞"
    if value <= 0:
        return "·"
    height = (math.log10(value) - LOWEST) / (HIGHEST - LOWEST)
    return BARS[max(0, min(len(BARS) - 1, int(height * len(BARS))))]


# --- parameters of two checkpoints ----------------------------------------------------------------------

PARAMETER_GLYPHS: dict[WeightVerdict, str] = {
    "agrees": GLYPHS["agrees"], "diverges": GLYPHS["diverges"], "missing": "-", "unexpected": "+",
    "unknown": GLYPHS["unknown"],
}  # fmt: skip
PARAMETER_COLOURS: dict[WeightVerdict, str] = {
    "agrees": COLOURS["agrees"], "diverges": COLOURS["diverges"], "missing": COLOURS["diverges"],
    "unexpected": "yellow", "unknown": COLOURS["unknown"],
}  # fmt: skip


def shape_text(row: ParameterRow) -> str:
    """The shape of a parameter, such as ``160x64``."""
    return "x".join(map(str, row.shape)) or "scalar"


def types_text(row: ParameterRow) -> str:
    """The type of both sides, such as ``float32`` or ``float32→Q4_K``."""
    ours, theirs = row.dtypes
    if ours and theirs and ours != theirs:
        return f"{ours}→{theirs}"
    return ours or theirs or ""
