"""Text from outside inside Markdown: as code, as prose, in a table. The only place that knows what is markup there."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence

from tensordiff.errors import printable

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
