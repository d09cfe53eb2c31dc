"""How a pair, a number, a shape and a verdict are spelled wherever they are shown.

Names come from outside: what leaves here is one printable line. What is markup in a format (``<`` in HTML, ``|`` in
Markdown, a leading ``=`` in a spreadsheet) is that format's to escape.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensordiff.align.match import Pair
from tensordiff.compare.verdict import VerdictName
from tensordiff.dump.model import Entry
from tensordiff.errors import printable

GLYPHS: dict[VerdictName, str] = {"agrees": "✓", "drifts": "~", "diverges": "✗", "unknown": "?"}
_NUMBER = 8
_NAMELESS = "(no name)"
_LONGEST = 300  # characters of a name in a line that has more to tell


def label(pair: Pair) -> str:
    """A pair as people call it: its layer, the port unless it is the output, the call and step unless the first."""
    entry = pair.reference
    port = () if entry.port in ("output", "output_0") else (entry.port,)
    call = () if entry.call == 1 else (f"call {entry.call}",)
    step = () if entry.step == 0 else (f"step {entry.step}",)
    return printable(" ".join((pair.name or _NAMELESS, *port, *(f"[{view}]" for view in pair.views), *call, *step)))


def name_of(entry: Entry) -> str:
    """An entry as it is called in its dump."""
    return printable(entry.name or _NAMELESS)


def short(text: str, width: int = _LONGEST) -> str:
    """Cut in the middle: a layer's number and its last part tell it from others."""
    if len(text) <= width:
        return text
    head = (width - 1) // 3
    return f"{text[:head]}…{text[head + 1 - width :]}"


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
