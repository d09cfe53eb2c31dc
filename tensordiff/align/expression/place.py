"""Where in a text a token stands, and the one error of this package, which points at it."""

from __future__ import annotations

from typing import NamedTuple

from tensordiff.errors import AlignError, printable

_BEFORE, _AFTER = 60, 40  # characters shown around the token: a long text must not hide its caret


class Place(NamedTuple):
    """A token's stretch of a text."""

    text: str
    start: int
    length: int = 1

    def pointed_at(self) -> str:
        """The text on one line, and a caret line under the token."""
        end = self.start + max(self.length, 1)
        left, right = max(0, self.start - _BEFORE), min(len(self.text), end + _AFTER)
        before = ("…" if left else "") + printable(self.text[left : self.start])
        token = printable(self.text[self.start : min(end, right)])
        after = printable(self.text[end:right]) + ("…" if right < len(self.text) else "")
        return f"  {before}{token}{after}\n  {' ' * len(before)}{'^' * max(len(token), 1)}"


class ExpressionError(AlignError):
    """An expression cannot be read, or does not fit the tensors it names."""

    def __init__(self, sentence: str, place: Place | None) -> None:
        self.sentence, self.place = printable(sentence), place
        super().__init__(self.sentence if place is None else f"{self.sentence}\n{place.pointed_at()}")

    @property
    def column(self) -> int | None:
        """Where the token starts, counted from 1; None where the expression was never a text."""
        return None if self.place is None else self.place.start + 1
