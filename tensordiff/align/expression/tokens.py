"""Text to tokens: words, quoted names, and the few marks between them.

A word is a function, a number, or an entry's name; which one is for ``parse`` to say. Names keep
their dots, brackets, slashes, ports and placeholders; ``(2)`` belongs to a name when it counts a
call, so ``lm_head(2)-output`` is one word and ``token(2)`` is a function and what follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from tensordiff.align.expression.functions import FUNCTIONS
from tensordiff.align.expression.place import ExpressionError, Place

Kind = Literal["word", "quoted", "(", ")", ",", "=", "|", "end"]

MOST_CHARACTERS = 32_768
_PLAIN = r"(?:[\w.\[\]/:+-]|\{[ijk]\})"
_WORD = re.compile(rf"{_PLAIN}+")
_CALLED_WORD = re.compile(rf"{_PLAIN}+(?:\([0-9]{{1,9}}\){_PLAIN}*)*")
_QUOTED = re.compile(r"""(?P<quote>["'])(?P<inside>(?:\\.|(?!(?P=quote))[^\\])*)(?P=quote)""", re.DOTALL)
_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_MARKS: dict[str, Kind] = {"(": "(", ")": ")", ",": ",", "=": "=", "|": "|"}


class Token(NamedTuple):
    """One token; ``text`` is what it means, without quotes."""

    kind: Kind
    text: str
    place: Place

    @property
    def is_number(self) -> bool:
        """Whether it is a number rather than a name."""
        return self.kind == "word" and is_number(self.text)

    def __str__(self) -> str:
        return "the end of the text" if self.kind == "end" else repr(self.text)


def tokens(text: str) -> list[Token]:
    """Cut a text into tokens; the last one is its end."""
    if len(text) > MOST_CHARACTERS:
        place = Place(text, MOST_CHARACTERS)
        raise ExpressionError(f"an expression has at most {MOST_CHARACTERS} characters, not {len(text)}", place)
    return list(_tokens(text))


def _tokens(text: str) -> Iterator[Token]:
    position = _after_space(text, 0)
    while position < len(text):
        token = _token(text, position)
        yield token
        position = _after_space(text, position + token.place.length)
    yield Token("end", "", Place(text, len(text)))


def _after_space(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return found.end() if found else position


def _token(text: str, start: int) -> Token:
    if mark := _MARKS.get(text[start]):
        return Token(mark, mark, Place(text, start))
    if text[start] in "\"'":
        return _quoted(text, start)
    word = _word(text, start)
    if not word:
        raise ExpressionError(_strange(text[start]), Place(text, start))
    return Token("word", word, Place(text, start, len(word)))


def _word(text: str, start: int) -> str:
    """A whole word. A function's name ends before its parenthesis, any other may count a call."""
    plain, called = _WORD.match(text, start), _CALLED_WORD.match(text, start)
    if plain is None or called is None:
        return ""
    return plain[0] if plain[0] in FUNCTIONS else called[0]


def _quoted(text: str, start: int) -> Token:
    found = _QUOTED.match(text, start)
    if found is None:
        raise ExpressionError("this quote is never closed", Place(text, start))
    place = Place(text, start, found.end() - start)
    if not found["inside"]:
        raise ExpressionError("an entry's name cannot be empty", place)
    return Token("quoted", re.sub(r"\\(.)", r"\1", found["inside"], flags=re.DOTALL), place)


def _strange(character: str) -> str:
    if character in "{}":
        return "a placeholder is {i}, {j} or {k}; a name with other braces needs double quotes"
    return f"{character!r} means nothing here; a name with such characters needs double quotes"


def is_number(word: str) -> bool:
    """Whether a word is a number."""
    return _NUMBER.fullmatch(word) is not None


def written_name(name: str) -> str:
    """A name so that it reads back as that name: bare where it can be, else in double quotes."""
    if name and _word(name, 0) == name and not is_number(name):
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
