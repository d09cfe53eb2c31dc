"""Parsing: tokens to a tree. This module knows what each function takes, and nothing about shapes."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from tensordiff.align.expression.lexer import (
    FUNCTIONS,
    ExpressionError,
    Function,
    Option,
    Parameter,
    ParameterKind,
    SourceSpan,
    Token,
    TokenKind,
    tokens,
)
from tensordiff.align.expression.tree import HERE, Call, Expression, Name
from tensordiff.dump.dtypes import DTYPES

_INT = re.compile(r"[+-]?[0-9]{1,18}")  # what fits into 64 bits
_KINDS: dict[ParameterKind, str] = {
    "int": "a whole number",
    "int or none": "a whole number or none",
    "number": "a finite number",
    "dtype": "an element type",
}
BoundOptions = tuple[tuple[Option, ...], tuple[SourceSpan | None, ...]]
"""The value of every option of a call, and where each was written; None for a default."""


class OptionTokens(NamedTuple):
    """The tokens of one call's options."""

    positional: list[Token]
    named: list[tuple[Token, Token]]


def bind_options(function_name: Token, options: OptionTokens) -> BoundOptions:
    """A value for every option of a function, and where each was written."""
    function = FUNCTIONS[function_name.text]
    if function.rest is not None:
        return _rest(function_name, function.rest, options)
    tokens = _by_parameter(function_name, function.parameters, options)
    values = tuple(_value_or_default(function_name, p, tokens.get(p.name)) for p in function.parameters)
    return values, tuple(tokens[p.name].span if p.name in tokens else None for p in function.parameters)


def _rest(function_name: Token, what: str, options: OptionTokens) -> BoundOptions:
    if options.named:
        name = options.named[0][0]
        raise ExpressionError(f"{function_name.text} has no option {name}", name.span)
    if not options.positional:
        raise ExpressionError(f"{function_name.text} takes at least one {what}", function_name.span)
    parameter = Parameter(what)
    return tuple(_value(function_name, parameter, t) for t in options.positional), tuple(
        t.span for t in options.positional
    )


def _by_parameter(function_name: Token, parameters: tuple[Parameter, ...], options: OptionTokens) -> dict[str, Token]:
    if len(options.positional) > len(parameters):
        extra = options.positional[len(parameters)]
        hint = "; the steps of a view are joined by '|'" if extra.text in FUNCTIONS else ""
        sentence = f"{function_name.text} takes {_listed(parameters)}, and {extra} is one too many{hint}"
        raise ExpressionError(sentence, extra.span)
    tokens = {p.name: token for p, token in zip(parameters, options.positional, strict=False)}
    known = [p.name for p in parameters]
    for name, value in options.named:
        if name.text not in known:
            raise ExpressionError(
                f"{function_name.text} takes {_listed(parameters)}, and has no option {name}", name.span
            )
        if name.text in tokens:
            raise ExpressionError(f"{function_name.text}: {name.text} is given twice", name.span)
        tokens[name.text] = value
    return tokens


def _listed(parameters: tuple[Parameter, ...]) -> str:
    names = [p.name for p in parameters]
    return f"the {'options' if len(names) > 1 else 'option'} {', '.join(names)}" if names else "no options"


def _value_or_default(function_name: Token, parameter: Parameter, token: Token | None) -> Option:
    if token is not None:
        return _value(function_name, parameter, token)
    if parameter.required:
        raise ExpressionError(
            f"{function_name.text} needs {parameter.name}: {_KINDS[parameter.kind]}", function_name.span
        )
    return parameter.default


def _value(function_name: Token, parameter: Parameter, token: Token) -> Option:
    try:
        return _read(parameter.kind, token)
    except ValueError:
        close = difflib.get_close_matches(token.text[:64], DTYPES, 1) if parameter.kind == "dtype" else []
        hint = f"; did you mean {close[0]}?" if close else ""
        sentence = f"{function_name.text}: {parameter.name} is {_KINDS[parameter.kind]}, and {token} is not{hint}"
        raise ExpressionError(sentence, token.span) from None


def _read(kind: ParameterKind, token: Token) -> Option:
    if kind == "dtype" and token.text in DTYPES:
        return token.text
    if kind == "number" and token.is_number and math.isfinite(float(token.text)):
        return float(token.text)
    if kind == "int or none" and token.text == "none":
        return None
    if kind in ("int", "int or none") and _INT.fullmatch(token.text):
        return int(token.text)
    raise ValueError(kind)


MAX_DEPTH = 32


def parse(text: str) -> Expression:
    """Parse an expression: a name, or a function of names and other functions."""
    reader = _TokenReader(tokens(text))
    expression = _expression(reader, 1)
    if reader.at("|"):
        raise reader.error("'|' joins the steps of a view; in an expression functions are nested, as in f(g(x))")
    reader.take("end", "the text should end here")
    return expression


def parse_view(text: str) -> Expression:
    """Parse a view: steps joined by ``|``, each a function and its options separated by spaces."""
    reader = _TokenReader(tokens(text))
    view: Expression = HERE
    for _ in range(MAX_DEPTH):
        view = _step(reader, view)
        if reader.at("end"):
            return view
        reader.take("|", "another step comes after '|'")
    raise reader.error(f"a view has at most {MAX_DEPTH} steps")


class _TokenReader:
    """A cursor over tokens. It stays at the last one, which marks the end."""

    def __init__(self, all_tokens: Sequence[Token]) -> None:
        self._tokens, self._position = all_tokens, 0

    @property
    def next(self) -> Token:
        return self._tokens[self._position]

    def at(self, *kinds: TokenKind, ahead: int = 0) -> bool:
        """Whether the next token, or the one ``ahead`` of it, is of one of these kinds."""
        return self._tokens[min(self._position + ahead, len(self._tokens) - 1)].kind in kinds

    def take(self, kind: TokenKind, expected: str) -> Token:
        if not self.at(kind):
            raise self.error(f"{expected}, not {self.next}")
        token = self.next
        self._position += kind != "end"
        return token

    def error(self, sentence: str) -> ExpressionError:
        """An error at the next token."""
        return ExpressionError(sentence, self.next.span)


def _expression(reader: _TokenReader, depth: int) -> Expression:
    if depth > MAX_DEPTH:
        raise reader.error(f"functions are nested more than {MAX_DEPTH} deep")
    if reader.at("word") and reader.at("(", ahead=1):
        return _call(reader, depth)
    if reader.next.is_number:
        raise reader.error(f'a tensor is expected, not a number; if an entry is called so, write "{reader.next.text}"')
    kind: TokenKind = "quoted" if reader.at("quoted") else "word"
    token = reader.take(kind, "a tensor is expected: an entry's name or a function")
    return Name(token.text, token.span)


def _call(reader: _TokenReader, depth: int) -> Call:
    function_name = reader.take("word", "a function is expected")
    function = _function(function_name)
    tensors, options = _arguments(reader, function, depth)
    if len(tensors) < function.tensors:
        least = "at least " if function.more_tensors else ""
        wanted = f"{least}{function.tensors} {'tensors' if function.tensors > 1 else 'tensor'}"
        raise ExpressionError(f"{function_name.text} takes {wanted}, and got {len(tensors)}", function_name.span)
    values, spans = bind_options(function_name, options)
    return Call(function_name.text, tuple(tensors), values, function_name.span, spans)


def _arguments(reader: _TokenReader, function: Function, depth: int) -> tuple[list[Expression], OptionTokens]:
    tensors: list[Expression] = []
    options = OptionTokens([], [])
    reader.take("(", "'(' is expected")
    more = not reader.at(")")
    while more:
        if (function.more_tensors or len(tensors) < function.tensors) and not reader.at("=", ahead=1):
            _no_bare_option(reader, function)
            tensors.append(_expression(reader, depth + 1))
        else:
            _option(reader, options)
        if more := reader.at(","):
            reader.take(",", "',' is expected")
    reader.take(")", "',' or ')' is expected")
    return tensors, options


def _no_bare_option(reader: _TokenReader, function: Function) -> None:
    if function.more_tensors and function.parameters and reader.next.is_number:
        option = f"{function.parameters[0].name}={reader.next.text}"
        raise reader.error(f"a tensor is expected, not a number; an option is given by name here: {option}")


def _option(reader: _TokenReader, options: OptionTokens) -> None:
    """A value, or a name and its value."""
    if not reader.at("=", ahead=1):
        options.positional.append(reader.take("word", "an option is expected"))
        return
    name = reader.take("word", "an option's name is expected before '='")
    reader.take("=", "'=' is expected")
    options.named.append((name, reader.take("word", "an option's value is expected after '='")))


def _step(reader: _TokenReader, view: Expression) -> Call:
    """Parse a function and its options up to the next ``|``, applied to the steps before it."""
    function_name = reader.take("word", "a step of a view is a function")
    if not _function(function_name).is_view:
        sentence = f"{function_name.text} takes more than one tensor, and a view has only the entry at hand"
        raise ExpressionError(sentence, function_name.span)
    if reader.at("("):
        raise reader.error("in a view options follow by spaces, as in 'squeeze 0', not in parentheses")
    options = OptionTokens([], [])
    while not reader.at("|", "end"):
        _option(reader, options)
    values, spans = bind_options(function_name, options)
    return Call(function_name.text, (view,), values, function_name.span, spans)


def _function(function_name: Token) -> Function:
    if function_name.text in FUNCTIONS:
        return FUNCTIONS[function_name.text]
    close = difflib.get_close_matches(function_name.text[:64], FUNCTIONS, 1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(FUNCTIONS)}"
    raise ExpressionError(f"{function_name} is not a function; {hint}", function_name.span)
