"""The options of one function: tokens to values, each of the kind its parameter asks for."""

from __future__ import annotations

import difflib
import math
import re
from typing import NamedTuple

from tensordiff.align.expression.functions import FUNCTIONS, Kind, Option, Parameter
from tensordiff.align.expression.place import ExpressionError, Place
from tensordiff.align.expression.tokens import Token
from tensordiff.dump.dtypes import DTYPES

_INT = re.compile(r"[+-]?[0-9]{1,18}")  # what fits 64 bits; sizes beyond that are no sizes
_KINDS: dict[Kind, str] = {
    "int": "a whole number",
    "int or none": "a whole number or none",
    "number": "a finite number",
    "dtype": "an element type",
}
Values = tuple[tuple[Option, ...], tuple[Place | None, ...]]


class Given(NamedTuple):
    """The option tokens of one call."""

    positional: list[Token]
    named: list[tuple[Token, Token]]


def options(head: Token, given: Given) -> Values:
    """A value for every option that a function has, and where each was written."""
    function = FUNCTIONS[head.text]
    if function.rest is not None:
        return _rest(head, function.rest, given)
    tokens = _by_parameter(head, function.parameters, given)
    values = tuple(_value_or_default(head, p, tokens.get(p.name)) for p in function.parameters)
    return values, tuple(tokens[p.name].place if p.name in tokens else None for p in function.parameters)


def _rest(head: Token, what: str, given: Given) -> Values:
    if given.named:
        name = given.named[0][0]
        raise ExpressionError(f"{head.text} has no option {name}", name.place)
    if not given.positional:
        raise ExpressionError(f"{head.text} takes at least one {what}", head.place)
    parameter = Parameter(what)
    return tuple(_value(head, parameter, t) for t in given.positional), tuple(t.place for t in given.positional)


def _by_parameter(head: Token, parameters: tuple[Parameter, ...], given: Given) -> dict[str, Token]:
    if len(given.positional) > len(parameters):
        extra = given.positional[len(parameters)]
        hint = "; the steps of a view are joined by '|'" if extra.text in FUNCTIONS else ""
        sentence = f"{head.text} takes {_listed(parameters)}, and {extra} is one too many{hint}"
        raise ExpressionError(sentence, extra.place)
    found = {p.name: token for p, token in zip(parameters, given.positional, strict=False)}
    known = [p.name for p in parameters]
    for name, value in given.named:
        if name.text not in known:
            raise ExpressionError(f"{head.text} takes {_listed(parameters)}, and has no option {name}", name.place)
        if name.text in found:
            raise ExpressionError(f"{head.text}: {name.text} is given twice", name.place)
        found[name.text] = value
    return found


def _listed(parameters: tuple[Parameter, ...]) -> str:
    names = [p.name for p in parameters]
    return f"the option{'s' * (len(names) > 1)} {', '.join(names)}" if names else "no options"


def _value_or_default(head: Token, parameter: Parameter, token: Token | None) -> Option:
    if token is not None:
        return _value(head, parameter, token)
    if parameter.required:
        raise ExpressionError(f"{head.text} needs {parameter.name}: {_KINDS[parameter.kind]}", head.place)
    return parameter.default


def _value(head: Token, parameter: Parameter, token: Token) -> Option:
    try:
        return _read(parameter.kind, token)
    except ValueError:
        close = difflib.get_close_matches(token.text[:64], DTYPES, 1) if parameter.kind == "dtype" else []
        hint = f"; did you mean {close[0]}?" if close else ""
        sentence = f"{head.text}: {parameter.name} is {_KINDS[parameter.kind]}, and {token} is not{hint}"
        raise ExpressionError(sentence, token.place) from None


def _read(kind: Kind, token: Token) -> Option:
    if kind == "dtype" and token.text in DTYPES:
        return token.text
    if kind == "number" and token.is_number and math.isfinite(float(token.text)):
        return float(token.text)
    if kind == "int or none" and token.text == "none":
        return None
    if kind in ("int", "int or none") and _INT.fullmatch(token.text):
        return int(token.text)
    raise ValueError(kind)
