"""Text cut, padded and wrapped to a width.

A width is counted in columns of a terminal: a wide character takes two, a combining accent none. The cutting functions
take another ``measure`` where a width means something else: ``len`` for files, Rich's ``cell_len`` in the app.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from itertools import accumulate

Measure = Callable[[str], int]
_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.)", re.ASCII)
"""A layer's number."""


def columns(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(map(_character_columns, text))


def _character_columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def pad(text: str, width: int) -> str:
    """Fill up with spaces."""
    return text + " " * (width - columns(text))


def cut_middle(text: str, width: int | None, measure: Measure = columns) -> str:
    """Cut out the middle: a layer's number and its last part tell it from others. None is as wide as it takes."""
    if width is None or measure(text) <= width:
        return text
    head = _head(text, (width - 1) // 3, measure)
    if (number := _NUMBER.search(text)) is not None and number.end() > len(head):
        head, text = number[1], text[number.end() :]
        if measure(text) <= width - len(head):
            return f"…{head}{text}" if measure(text) < width - len(head) else f"{head}…{text[1:]}"
        if len(head) > width // 2:
            head = ""
    tail = _head(text[::-1], width - 1 - measure(head), measure)[::-1]
    return f"{head}…{tail}"


def cut_end(text: str, width: int, measure: Measure = columns) -> str:
    """Cut off the end."""
    return text if measure(text) <= width else f"{_head(text, width - 1, measure)}…"


def _head(text: str, width: int, measure: Measure = columns) -> str:
    """As much of the beginning as fits. A few accents a character are kept, a heap of them is not."""
    some = text[: 4 * width]
    return some[: sum(total <= width for total in accumulate(map(measure, some)))]


def wrap(text: str, width: int | None, first: str = "", rest: str = "") -> Iterator[str]:
    """Lines of at most so many columns, cut at spaces where there are any; one line where width is None.

    ``first`` stands before the first line, ``rest`` before those that follow.
    """
    line, begun = first, False
    for word in text.split(" ") if width is None else _pieces(text, width - max(len(first), len(rest))):
        longer = f"{line} {word}" if begun else line + word
        if width is not None and begun and columns(longer) > width:
            yield line
            longer = rest + word
        line, begun = longer, True
    yield line


def _pieces(text: str, width: int) -> Iterator[str]:
    """Words, those too long for a line in parts."""
    for word in text.split(" "):
        yield (part := _head(word, width))
        at = len(part)
        while at < len(word):
            part = _head(word[at : at + 4 * width], width) or word[at]
            yield part
            at += len(part)
