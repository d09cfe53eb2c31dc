"""The vocabulary of the language: its error, its functions, and the tokens of a text.

``FUNCTIONS`` says what each function takes. What it does to a shape is in ``plan``, what it does to values in
``evaluate``, and all three tables have the same keys. A function takes tensors first, then options: whole numbers,
numbers, an element type.

A word is a function, a number or an entry's name; ``parse`` decides which. Names keep their dots, brackets, slashes,
ports and placeholders. ``(2)`` belongs to a name when it counts a call, so ``lm_head(2)-output`` is one word, while
``token(2)`` is a function and its argument.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from tensordiff.align.expression.placeholder import PATTERN
from tensordiff.errors import AlignError, printable
from tensordiff.util.text_width import cut_end

_BEFORE, _AFTER = 60, 40  # characters shown around the token, so that a long text does not hide the caret


class SourceSpan(NamedTuple):
    """A token's position in a text."""

    text: str
    start: int
    length: int = 1

    def pointed_at(self) -> str:
        """The text on one line, and a line with a caret under the token."""
        end = self.start + max(self.length, 1)
        left, right = max(0, self.start - _BEFORE), min(len(self.text), end + _AFTER)
        before = ("…" if left else "") + printable(self.text[left : self.start])
        token = printable(self.text[self.start : min(end, right)])
        after = printable(self.text[end:right]) + ("…" if right < len(self.text) else "")
        return f"  {before}{token}{after}\n  {' ' * len(before)}{'^' * max(len(token), 1)}"


class ExpressionError(AlignError):
    """An expression cannot be parsed, or does not fit the tensors it names."""

    def __init__(self, sentence: str, span: SourceSpan | None) -> None:
        self.sentence, self.span = printable(sentence), span
        super().__init__(self.sentence if span is None else f"{self.sentence}\n{span.pointed_at()}")

    @property
    def column(self) -> int | None:
        """Where the token starts, counted from 1; None if the expression was never text."""
        return None if self.span is None else self.span.start + 1


Option = int | float | str | None
ParameterKind = Literal["int", "int or none", "number", "dtype"]


class Parameter(NamedTuple):
    """An option that a function takes."""

    name: str
    kind: ParameterKind = "int"
    required: bool = True
    default: Option = None
    by_name: bool = False
    """Whether it is written by name: ``axis=0``."""


class Function(NamedTuple):
    """What a function takes, in the order it is written."""

    help: str
    tensors: int = 1
    more_tensors: bool = False
    """Whether any number of tensors may follow; options are then given by name."""
    parameters: tuple[Parameter, ...] = ()
    rest: str | None = None
    """What any number of further whole numbers mean, if they are allowed."""

    @property
    def is_view(self) -> bool:
        """Whether it can be a step of a view: one tensor in, one out."""
        return self.tensors == 1 and not self.more_tensors


def _one(help_: str, *parameters: Parameter, rest: str | None = None) -> Function:
    return Function(help_, parameters=parameters, rest=rest)


_AXIS, _LAST_AXIS = Parameter("axis"), Parameter("axis", required=False, default=-1, by_name=True)

FUNCTIONS: dict[str, Function] = {
    "cat": Function("tensors joined along an axis, the last unless said", 2, True, (_LAST_AXIS,)),
    "sum": Function("elementwise sum", 2, True),
    "sub": Function("elementwise difference", 2),
    "mul": Function("elementwise product", 2),
    "scale": _one("every element times a number", Parameter("number", "number")),
    "silu": _one("x * sigmoid(x)"),
    "gelu": _one("exact gelu, by the error function"),
    "gelu_tanh": _one("gelu as approximated by tanh"),
    "relu": _one("negative values become 0"),
    "cast": _one("another element type", Parameter("dtype", "dtype")),
    "squeeze": _one("drops an axis of size 1", _AXIS),
    "unsqueeze": _one("puts in an axis of size 1", _AXIS),
    "reshape": _one("the same elements under other sizes; one may be -1", rest="size"),
    "flatten": _one("merges the axes from first to last", Parameter("first"), Parameter("last")),
    "transpose": _one("swaps two axes", Parameter("a"), Parameter("b")),
    "permute": _one("puts all axes in a new order", rest="axis"),
    "slice": _one(
        "elements from start up to stop along an axis",
        _AXIS,
        Parameter("start", "int or none", required=False),
        Parameter("stop", "int or none", required=False),
    ),
    "split": _one("one of several equal parts, counted from 0", Parameter("part"), Parameter("parts"), _LAST_AXIS),
    "last_token": _one("the last token: [B, S, H] gives [B, H], and [S, H] gives [1, H]"),
    "token": _one("the token at a position: [B, S, H] gives [B, H], and [S, H] gives [1, H]", Parameter("position")),
    "heads": _one("splits the last axis into heads: [.., n*d] gives [.., n, d]", Parameter("n")),
    "swap_heads": _one("swaps tokens and heads: [.., S, n, d] gives [.., n, S, d], and back"),
    "interleave": _one("rope order along the last axis: two halves become neighbours"),
    "deinterleave": _one("rope order along the last axis: neighbours become two halves"),
}


TokenKind = Literal["word", "quoted", "(", ")", ",", "=", "|", "end"]

MAX_CHARACTERS = 32_768
_SHOWN = 80  # characters of a token that a message shows
_PLAIN = rf"(?:[\w.\[\]/:+-]|{PATTERN})"
_WORD = re.compile(rf"{_PLAIN}+")
_CALLED_WORD = re.compile(rf"{_PLAIN}+(?:\((?:[0-9]{{1,9}}|{PATTERN})\){_PLAIN}*)*")
_QUOTED = re.compile(r"""(?P<quote>["'])(?P<inside>(?:\\.|(?!(?P=quote))[^\\])*)(?P=quote)""", re.DOTALL)
_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_MARKS: dict[str, TokenKind] = {"(": "(", ")": ")", ",": ",", "=": "=", "|": "|"}


class Token(NamedTuple):
    """One token; ``text`` is its meaning, without quotes."""

    kind: TokenKind
    text: str
    span: SourceSpan

    @property
    def is_number(self) -> bool:
        """Whether it is a number rather than a name."""
        return self.kind == "word" and is_number(self.text)

    def __str__(self) -> str:
        return "the end of the text" if self.kind == "end" else repr(cut_end(self.text, _SHOWN, len))


def tokens(text: str) -> list[Token]:
    """Split a text into tokens; the last one marks its end."""
    if len(text) > MAX_CHARACTERS:
        span = SourceSpan(text, MAX_CHARACTERS)
        raise ExpressionError(f"an expression has at most {MAX_CHARACTERS} characters, not {len(text)}", span)
    return list(_tokens(text))


def _tokens(text: str) -> Iterator[Token]:
    position = _after_space(text, 0)
    while position < len(text):
        token = _token(text, position)
        yield token
        position = _after_space(text, position + token.span.length)
    yield Token("end", "", SourceSpan(text, len(text)))


def _after_space(text: str, position: int) -> int:
    space = _SPACE.match(text, position)
    return space.end() if space else position


def _token(text: str, start: int) -> Token:
    if mark := _MARKS.get(text[start]):
        return Token(mark, mark, SourceSpan(text, start))
    if text[start] in "\"'":
        return _quoted(text, start)
    word = _word(text, start)
    if not word:
        raise ExpressionError(_unexpected(text[start]), SourceSpan(text, start))
    return Token("word", word, SourceSpan(text, start, len(word)))


def _word(text: str, start: int) -> str:
    """A whole word. A function's name ends before its parenthesis; any other may contain a call number."""
    plain, called = _WORD.match(text, start), _CALLED_WORD.match(text, start)
    if plain is None or called is None:
        return ""
    return plain[0] if plain[0] in FUNCTIONS else called[0]


def _quoted(text: str, start: int) -> Token:
    match = _QUOTED.match(text, start)
    if match is None:
        raise ExpressionError("this quote is never closed", SourceSpan(text, start))
    span = SourceSpan(text, start, match.end() - start)
    if not match["inside"]:
        raise ExpressionError("an entry's name cannot be empty", span)
    return Token("quoted", re.sub(r"\\(.)", r"\1", match["inside"], flags=re.DOTALL), span)


def _unexpected(character: str) -> str:
    if character in "{}":
        return (
            "a placeholder is {i}, {j} or {k}, or such as {i+1} and {2i}; a name with other braces needs double quotes"
        )
    return f"{character!r} means nothing here; a name with such characters needs double quotes"


def is_number(word: str) -> bool:
    """Whether a word is a number."""
    return _NUMBER.fullmatch(word) is not None


def written_name(name: str) -> str:
    """A name as it is written in an expression: bare if possible, otherwise in double quotes."""
    if name and _word(name, 0) == name and not is_number(name):
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
