"""Placeholders: ``{i}`` in a name stands for a layer's number, so that one expression serves every layer.

If two engines count differently, one is written as a function of the other: ``{i+1}`` counts from 1, ``{2i}`` and
``{2i+1}`` share a list between two kinds of layer, ``{i:02}`` has at least two digits. The letters are i, j and k.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PATTERN = r"\{(?:[2-9])?[ijk](?:[+-][1-9][0-9]{0,3})?(?::0[2-9])?\}"
PLACEHOLDER = re.compile(r"\{([2-9])?([ijk])([+-][1-9][0-9]{0,3})?(?::0([2-9]))?\}")
WHOLE = r"0|[1-9][0-9]{0,8}"  # as Python writes a number, so that a bound number reads back the same
_PADDED = r"[0-9]{1,9}"


class Placeholder(NamedTuple):
    """A letter, and how its number is transformed before it is written."""

    letter: str
    factor: int = 1
    offset: int = 0
    width: int = 0

    @classmethod
    def of(cls, match: re.Match[str]) -> Placeholder:
        """The placeholder of a match of ``PLACEHOLDER``."""
        return cls(match[2], int(match[1] or 1), int(match[3] or 0), int(match[4] or 0))

    def __str__(self) -> str:
        factor = "" if self.factor == 1 else str(self.factor)
        offset = f"{self.offset:+d}" if self.offset else ""
        width = f":0{self.width}" if self.width else ""
        return f"{{{factor}{self.letter}{offset}{width}}}"

    def text(self, number: int) -> str:
        """The text in a name for a number."""
        return f"{self.factor * number + self.offset:0{self.width}d}"

    def number(self, text: str) -> int | None:
        """The number for which a name has this text; None if there is none."""
        number, rest = divmod(int(text) - self.offset, self.factor)
        return number if not rest and number >= 0 and self.text(number) == text else None

    @property
    def regex(self) -> str:
        """An expression for all it may become, and more."""
        return _PADDED if self.width else WHOLE


def placeholders_in(text: str) -> list[tuple[Placeholder, slice]]:
    """The placeholders of a name, and their positions."""
    return [(Placeholder.of(match), slice(*match.span())) for match in PLACEHOLDER.finditer(text)]


def filled(text: str, numbers: dict[str, int]) -> str:
    """A name with its placeholders filled in; those without a number stay."""

    def fill(match: re.Match[str]) -> str:
        one = Placeholder.of(match)
        return one.text(numbers[one.letter]) if one.letter in numbers else match[0]

    return PLACEHOLDER.sub(fill, text)
