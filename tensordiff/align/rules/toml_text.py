"""Positions in a TOML text: lines, columns, and the spans of its tables.

``tomllib`` gives values without positions and ``tomlkit`` gives no lines, so positions are looked up here, in a text
that is known to be valid. Strings and comments are blanked out first, so that text in them is not taken for a header.
"""

from __future__ import annotations

import re
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

_OPAQUE = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}' r"|'''.*?'{3,5}" r'|"(?:\\.|[^"\\\n])*"' r"|'[^'\n]*'" r"|#[^\n]*", re.DOTALL
)
_HEADER = re.compile(r"^[ \t]*\[\[?[ \t]*(?P<name>[\w-]+)[^\]\n]*\]", re.MULTILINE)
_OPENINGS = (1, 3, 4, 5)  # characters before a string's text: a quote, or three quotes and maybe a newline


class TextPosition(NamedTuple):
    """A position in a text; both count from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


class TableSpan(NamedTuple):
    """A table: from its header to the next one."""

    name: str
    start: int
    end: int


class TomlText:
    """A valid TOML text, and the positions of its tables, keys and values."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def blanked(self) -> str:
        """The text with spaces in place of its strings and comments."""
        return _OPAQUE.sub(lambda match: re.sub(r"[^\r\n]", " ", match[0]), self.text)

    @cached_property
    def without_comments(self) -> str:
        """The text with spaces in place of its comments only."""
        return _OPAQUE.sub(
            lambda match: re.sub(r"[^\r\n]", " ", match[0]) if match[0][0] == "#" else match[0], self.text
        )

    def is_comment(self, start: int) -> bool:
        """Whether the line that starts here is only a comment."""
        end = self.text.find("\n", start)
        line = slice(start, len(self.text) if end < 0 else end)
        return bool(self.text[line].strip()) and not self.without_comments[line].strip()

    @cached_property
    def tables(self) -> list[TableSpan]:
        """Every table that has a header, in order."""
        headers = list(_HEADER.finditer(self.blanked))
        edges = pairwise([*(header.start() for header in headers), len(self.text)])
        return [TableSpan(header["name"], *edge) for header, edge in zip(headers, edges, strict=True)]

    def top(self, key: str) -> TextPosition:
        """The first table, or top-level key, of a name."""
        starts = [table.start for table in self.tables if table.name == key]
        match = self._key(key, 0, self.tables[0].start if self.tables else len(self.text))
        return self._at(min([*starts, *([match.start("key")] if match else [])], default=0))

    def table(self, name: str, number: int) -> TextPosition:
        """The n-th table of a name."""
        span = self._span(name, number)
        return self._at(span.start) if span else self.top(name)

    def key(self, name: str, number: int, key: str) -> TextPosition:
        """A key of a table; the table itself if the key cannot be found."""
        match = self._key_of(name, number, key)
        return self._at(match.start("key")) if match else self.table(name, number)

    def inside(self, name: str, number: int, key: str, offset: int, value: str) -> TextPosition:
        """A character of a text value; the value itself if it is written with escapes."""
        match = self._key_of(name, number, key)
        if match is None:
            return self.table(name, number)
        openings = (match.end() + n for n in _OPENINGS if self.text.startswith(value, match.end() + n))
        return self._at(next((start + offset for start in openings), match.end()))

    def end(self) -> TextPosition:
        """The position after the last character."""
        return self._at(len(self.text))

    def _span(self, name: str, number: int) -> TableSpan | None:
        ours = [table for table in self.tables if table.name == name]
        return ours[number - 1] if number <= len(ours) else None

    def _key_of(self, name: str, number: int, key: str) -> re.Match[str] | None:
        span = self._span(name, number)
        return self._key(key, span.start, span.end) if span else None

    def _key(self, key: str, start: int, end: int) -> re.Match[str] | None:
        # Blanked strings are spaces too, so the value is searched in the original text.
        pattern = re.compile(rf"^[ \t]*(?P<key>{re.escape(key)})[ \t]*=", re.MULTILINE)
        if (match := pattern.search(self.blanked, start, end)) is None:
            return None
        return re.compile(r"(?P<key>\S.*?)=[ \t]*").match(self.text, match.start("key"))

    def _at(self, offset: int) -> TextPosition:
        before = self.text[:offset]
        return TextPosition(before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)
