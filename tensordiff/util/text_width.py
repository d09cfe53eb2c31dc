"""Text cut, padded and wrapped to a width.

Width counts terminal columns: a wide character takes two, a combining accent none. The cutting functions accept another
``measure`` where width means something else: ``len`` for files, Rich's ``cell_len`` in the app.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from itertools import accumulate

Measure = Callable[[str], int]
_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.)", re.ASCII)
"""The number of a layer."""


def columns(text: str) -> int:
    """How many terminal columns a text takes."""
    return len(text) if text.isascii() else sum(map(_character_columns, text))


def _character_columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def pad(text: str, width: int) -> str:
    """Pad with spaces."""
    return text + " " * (width - columns(text))


def cut_middle(text: str, width: int | None, measure: Measure = columns) -> str:
    """Cut out the middle, since a layer's number and last part distinguish it. A width of None cuts nothing."""
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
    """As much of the beginning as fits. A few accents per character are kept, a pile of them is not."""
    some = text[: 4 * width]
    return some[: sum(total <= width for total in accumulate(map(measure, some)))]


def wrap(text: str, width: int | None, first: str = "", rest: str = "") -> Iterator[str]:
    """Lines of at most ``width`` columns, broken at spaces if there are any; one line if the width is None.

    ``first`` precedes the first line, ``rest`` all later ones.
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
    """The words; a word that is too long for a line comes in parts."""
    for word in text.split(" "):
        yield (part := _head(word, width))
        at = len(part)
        while at < len(word):
            part = _head(word[at : at + 4 * width], width) or word[at]
            yield part
            at += len(part)
