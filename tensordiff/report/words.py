"""How a pair, a number, a shape and a verdict are spelled wherever they are shown.

Names come from outside: what leaves here is one printable line. What is markup in a format (``<`` in HTML, ``|`` in
Markdown, a leading ``=`` in a spreadsheet) is that format's to escape.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensordiff.align.match import Pair
from tensordiff.compare.verdict import VerdictName
from tensordiff.errors import printable

GLYPHS: dict[VerdictName, str] = {"agrees": "✓", "drifts": "~", "diverges": "✗", "unknown": "?"}
_NUMBER = 8


def label(pair: Pair) -> str:
    """A pair as people call it: its layer, the port unless it is the output, the call and step unless the first."""
    entry = pair.reference
    port = () if entry.port in ("output", "output_0") else (entry.port,)
    call = () if entry.call == 1 else (f"call {entry.call}",)
    step = () if entry.step == 0 else (f"step {entry.step}",)
    return printable(" ".join((pair.name, *port, *(f"[{view}]" for view in pair.views), *call, *step)))


def number(value: float | None) -> str:
    """A number in at most eight characters, nine with a sign; ``-`` where there is none."""
    if value is None:
        return "-"
    text = "0" if value == 0 else f"{value:.2e}"
    return text if len(text.lstrip("-")) <= _NUMBER else f"{value:.1e}"


def shape_of(shape: Sequence[int] | None) -> str:
    """A shape as Python spells a list; ``-`` where the two sides have none in common."""
    return "-" if shape is None else str(list(shape))


def counted(count: int, noun: str) -> str:
    """How many of something, in the right number."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def cut(text: str, width: int) -> str:
    """At most so many characters; what is left out is marked."""
    return text if len(text) <= width else f"{text[: width - 1]}…"
