"""Completing the word under the cursor of an expression: names of a side's entries, then functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from heapq import nsmallest
from itertools import islice

from textual.suggester import Suggester

from tensordiff.align.expression import FUNCTIONS

_WORD = re.compile(r"""(?:"(?:\\.|[^"\\])*|[\w.\[\]/:+{}-]+)$""")


class ExpressionSuggester(Suggester):
    """Offers the rest of the last word."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self.names = [*names, *(f"{name}(" for name in FUNCTIONS)]

    def matching(self, value: str, most: int) -> list[str]:
        """Words that the last one may become, short ones first: those that begin so, else those that have it within."""
        found = _WORD.search(value)
        if found is None:
            return [] if value.rstrip().endswith((")", '"')) else list(islice(self.names, most))
        begin = nsmallest(most, self._beginning(found[0]), key=len)
        return begin or nsmallest(most, (name for name in self.names if found[0] in name and name != found[0]), key=len)

    def _beginning(self, word: str) -> Iterator[str]:
        return (name for name in self.names if name.startswith(word) and name != word)

    async def get_suggestion(self, value: str) -> str | None:
        """The whole text, completed."""
        found = _WORD.search(value)
        if found is None:
            return None
        word = min(self._beginning(found[0]), key=len, default=None)
        return None if word is None else value[: found.start()] + word
