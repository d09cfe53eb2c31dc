"""The tree of an expression, its canonical text, and placeholders.

Two expressions are equal if they mean the same, wherever their tokens were. ``str`` of a tree parses to an equal tree:
with ``parse`` for an expression, with ``parse_view`` for a chain. Trees are walked with ``fold`` and ``leaves``,
nowhere by hand.

``{i}`` in a name stands for a layer's number (``placeholder``), also inside quotes. ``bind`` fills it in, ``bindings``
finds the numbers that fit a name, ``generalize`` replaces the layer's number in a map of one layer by it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeVar

from tensordiff.align.expression.lexer import FUNCTIONS, ExpressionError, Option, SourceSpan, written_name
from tensordiff.align.expression.placeholder import WHOLE, Placeholder, filled, placeholders_in
from tensordiff.dump.names import NameParts, parse_name

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Name:
    """An entry, by layer, call and port, as it was written; ``{i}`` stands for a number."""

    text: str
    span: SourceSpan | None = field(default=None, compare=False, repr=False)

    @property
    def parts(self) -> NameParts:
        """The layer, port and call it means; the port is ``output`` unless it says another."""
        return parse_name(self.text)

    def __str__(self) -> str:
        return written_name(self.text)


@dataclass(frozen=True, slots=True)
class Call:
    """A function applied to tensors. Every option of its function has a value here."""

    function: str
    tensors: tuple[Expression, ...]
    options: tuple[Option, ...] = ()
    span: SourceSpan | None = field(default=None, compare=False, repr=False)
    option_spans: tuple[SourceSpan | None, ...] = field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        if _is_chain(self):
            return _written_chain(self)
        return f"{self.function}({', '.join([*map(str, self.tensors), *self.written_options()])})"

    def written_options(self) -> list[str]:
        """The options as text, without those that have their default."""
        function = FUNCTIONS[self.function]
        if function.rest is not None:
            return [written_option(value) for value in self.options]
        pairs = list(zip(function.parameters, self.options, strict=True))
        while pairs and not pairs[-1][0].required and pairs[-1][0].default == pairs[-1][1]:
            pairs.pop()
        return [f"{p.name}={written_option(v)}" if p.by_name else written_option(v) for p, v in pairs]

    def error(self, sentence: str, *, option: int | None = None, tensor: int | None = None) -> ExpressionError:
        """An error that names the function and points at it, or at one of its arguments."""
        span = self.span
        if tensor is not None:
            span = self.tensors[tensor].span or span
        elif option is not None and option < len(self.option_spans):
            span = self.option_spans[option] or span
        return ExpressionError(f"{self.function}: {sentence}", span)


Expression = Name | Call
HERE = Name("")
"""The entry that a view is applied to. No entry has an empty name."""


def fold(expression: Expression, leaf: Callable[[Name], T], join: Callable[[Call, tuple[T, ...]], T]) -> T:
    """Compute a value for a tree, from its names up."""
    if isinstance(expression, Name):
        return leaf(expression)
    return join(expression, tuple(fold(tensor, leaf, join) for tensor in expression.tensors))


def leaves(expression: Expression) -> Iterator[Name]:
    """The names of a tree, repeated as often as they occur."""
    if isinstance(expression, Name):
        yield expression
    else:
        yield from (name for tensor in expression.tensors for name in leaves(tensor))


def rebuild(expression: Expression, leaf: Callable[[Name], Expression]) -> Expression:
    """The same tree with its names replaced."""
    return fold(expression, leaf, lambda call, tensors: replace(call, tensors=tensors))


def view_of(view: Expression, expression: Expression) -> Expression:
    """A view applied to an expression."""
    return rebuild(view, lambda name: expression if name == HERE else name)


def written_option(value: Option) -> str:
    """An option as text."""
    if value is None:
        return "none"
    return str(value).removesuffix(".0")


def _is_chain(call: Call) -> bool:
    inner: Expression = call
    while isinstance(inner, Call) and len(inner.tensors) == 1:
        inner = inner.tensors[0]
    return inner == HERE


def _written_chain(call: Call) -> str:
    step = " ".join([call.function, *call.written_options()])
    inner = call.tensors[0]
    return step if inner == HERE else f"{inner} | {step}"


LONE_NUMBER = re.compile(rf"(?<![\w-])(?:{WHOLE})(?![\w-])")
_NUMBER = re.compile(r"[0-9]{1,4}")
_OF_LAYER = re.compile(rf"(?<![0-9A-Za-z])(?:layers?|blocks?|h)[^0-9A-Za-z]({WHOLE})(?![0-9A-Za-z])")


def names(expression: Expression) -> tuple[str, ...]:
    """The entries an expression names, each once, in order."""
    return tuple(dict.fromkeys(name.text for name in leaves(expression) if name != HERE))


def placeholders(expression: Expression) -> frozenset[str]:
    """The letters of the placeholders in an expression."""
    return frozenset(one.letter for text in names(expression) for one, _ in placeholders_in(text))


def bind(expression: Expression, numbers: Mapping[str, int]) -> Expression:
    """Fill in placeholders; those without a number stay."""

    as_dict = dict(numbers)
    return rebuild(expression, lambda name: replace(name, text=filled(name.text, as_dict)))


def bindings(pattern: str, text: str) -> dict[str, int] | None:
    """The numbers with which a name with placeholders becomes this text, or None."""
    expression, parts = _compiled(pattern)
    match = expression.fullmatch(text)
    if match is None:
        return None
    numbers: dict[str, int] = {}
    for one, digits in zip(parts, match.groups(), strict=True):
        number = one.number(digits)
        if number is None or numbers.setdefault(one.letter, number) != number:
            return None
    return numbers


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> tuple[re.Pattern[str], tuple[Placeholder, ...]]:
    source, end, parts = "", 0, []
    for one, at in placeholders_in(pattern):
        source += f"{re.escape(pattern[end : at.start])}({one.regex})"
        end = at.stop
        parts.append(one)
    return re.compile(source + re.escape(pattern[end:])), tuple(parts)


def generalize(*sides: Expression) -> tuple[Expression, ...]:
    """Replace the layer's number that every name of a map shares by ``{i}``; other numbers stay.

    A map that has placeholders already, or whose names share no number, is returned unchanged.
    """
    texts = [text for side in sides for text in names(side)]
    number = _shared_number(texts)
    if number is None or any(placeholders(side) for side in sides):
        return sides
    return tuple(rebuild(side, lambda name: replace(name, text=_with_placeholder(name.text, number))) for side in sides)


def generalize_counts(reference: Expression, candidate: Expression) -> tuple[Expression, Expression]:
    """The same if the candidate counts differently, by the first number of its names: ``blk{i+1:02}``.

    This is a guess from one pair of names: believe it only if several layers give the same.
    """
    ours, theirs = (list(names(side)) for side in (reference, candidate))
    number = _shared_number(ours)
    first = {match[0] for text in theirs if (match := _NUMBER.search(parse_name(text).layer))}
    if number is None or len(first) != 1 or any(placeholders(side) for side in (reference, candidate)):
        return reference, candidate
    count = first.pop()
    width = len(count) if count.startswith("0") and 2 <= len(count) <= 9 else 0
    place = Placeholder("i", 1, int(count) - int(number), width)
    return (
        rebuild(reference, lambda name: replace(name, text=_with_placeholder(name.text, number))),
        rebuild(candidate, lambda name: replace(name, text=name.text.replace(count, str(place), 1))),
    )


def _shared_number(texts: list[str]) -> str | None:
    numbers = [[text[span] for span in _layer_numbers(text)] for text in texts]
    return next((n for n in numbers[0] if all(n in others for others in numbers)), None) if numbers else None


def _with_placeholder(text: str, number: str) -> str:
    for span in _layer_numbers(text):
        if text[span] == number:
            return f"{text[: span.start]}{{i}}{text[span.stop :]}"
    return text


def _layer_numbers(text: str) -> list[slice]:
    """The numbers in a name that may count layers: after a word like ``layers``, or else any number between dots.

    The numbers of ports and calls are not among them.
    """
    layer = parse_name(text).layer
    slices = [slice(*match.span(1)) for match in _OF_LAYER.finditer(layer)]
    return slices or [slice(*match.span()) for match in LONE_NUMBER.finditer(layer)]
