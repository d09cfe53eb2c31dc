"""Parse: tokens to a tree. Nothing about shapes is known here, only what each function takes."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from tensordiff.align.expression.functions import FUNCTIONS, Function
from tensordiff.align.expression.options import Given, options
from tensordiff.align.expression.place import ExpressionError
from tensordiff.align.expression.tokens import Kind, Token, tokens
from tensordiff.align.expression.tree import HERE, Call, Expression, Name

MOST_NESTED = 32


def parse(text: str) -> Expression:
    """Read an expression: a name, or a function of names and other functions."""
    reader = _Reader(tokens(text))
    expression = _expression(reader, 1)
    if reader.at("|"):
        raise reader.wrong("'|' joins the steps of a view; in an expression functions are nested, as in f(g(x))")
    reader.take("end", "the text should end here")
    return expression


def parse_view(text: str) -> Expression:
    """Read a view: steps joined by ``|``, each a function and its options parted by spaces."""
    reader = _Reader(tokens(text))
    view: Expression = HERE
    for _ in range(MOST_NESTED):
        view = _step(reader, view)
        if reader.at("end"):
            return view
        reader.take("|", "another step comes after '|'")
    raise reader.wrong(f"a view has at most {MOST_NESTED} steps")


class _Reader:
    """A cursor over tokens. It stops at the end, which is a token too."""

    def __init__(self, all_tokens: Sequence[Token]) -> None:
        self._tokens, self._position = all_tokens, 0

    @property
    def next(self) -> Token:
        return self._tokens[self._position]

    def at(self, *kinds: Kind, ahead: int = 0) -> bool:
        """Whether a token of one of these kinds comes next, or so many tokens ahead."""
        return self._tokens[min(self._position + ahead, len(self._tokens) - 1)].kind in kinds

    def take(self, kind: Kind, expected: str) -> Token:
        if not self.at(kind):
            raise self.wrong(f"{expected}, not {self.next}")
        token = self.next
        self._position += kind != "end"
        return token

    def wrong(self, sentence: str) -> ExpressionError:
        return ExpressionError(sentence, self.next.place)


def _expression(reader: _Reader, depth: int) -> Expression:
    if depth > MOST_NESTED:
        raise reader.wrong(f"functions are nested more than {MOST_NESTED} deep")
    if reader.at("word") and reader.at("(", ahead=1):
        return _call(reader, depth)
    if reader.next.is_number:
        raise reader.wrong(f'a tensor is expected, not a number; if an entry is called so, write "{reader.next.text}"')
    kind: Kind = "quoted" if reader.at("quoted") else "word"
    token = reader.take(kind, "a tensor is expected: an entry's name or a function")
    return Name(token.text, token.place)


def _call(reader: _Reader, depth: int) -> Call:
    head = reader.take("word", "a function is expected")
    function = _function(head)
    tensors, given = _arguments(reader, function, depth)
    if len(tensors) < function.tensors:
        wanted = f"{'at least ' * function.more_tensors}{function.tensors} tensor{'s' * (function.tensors > 1)}"
        raise ExpressionError(f"{head.text} takes {wanted}, and got {len(tensors)}", head.place)
    values, places = options(head, given)
    return Call(head.text, tuple(tensors), values, head.place, places)


def _arguments(reader: _Reader, function: Function, depth: int) -> tuple[list[Expression], Given]:
    tensors: list[Expression] = []
    given = Given([], [])
    reader.take("(", "'(' is expected")
    more = not reader.at(")")
    while more:
        if (function.more_tensors or len(tensors) < function.tensors) and not reader.at("=", ahead=1):
            _no_bare_option(reader, function)
            tensors.append(_expression(reader, depth + 1))
        else:
            _option(reader, given)
        if more := reader.at(","):
            reader.take(",", "',' is expected")
    reader.take(")", "',' or ')' is expected")
    return tensors, given


def _no_bare_option(reader: _Reader, function: Function) -> None:
    if function.more_tensors and function.parameters and reader.next.is_number:
        option = f"{function.parameters[0].name}={reader.next.text}"
        raise reader.wrong(f"a tensor is expected, not a number; an option is given by name here: {option}")


def _option(reader: _Reader, given: Given) -> None:
    """A value, or a name and its value."""
    if not reader.at("=", ahead=1):
        given.positional.append(reader.take("word", "an option is expected"))
        return
    name = reader.take("word", "an option's name is expected before '='")
    reader.take("=", "'=' is expected")
    given.named.append((name, reader.take("word", "an option's value is expected after '='")))


def _step(reader: _Reader, view: Expression) -> Call:
    """A function and its options up to the next ``|``, applied to the steps before it."""
    head = reader.take("word", "a step of a view is a function")
    if not _function(head).is_view:
        sentence = f"{head.text} takes more than one tensor, and a view has only the entry at hand"
        raise ExpressionError(sentence, head.place)
    if reader.at("("):
        raise reader.wrong("in a view options follow by spaces, as in 'squeeze 0', not in parentheses")
    given = Given([], [])
    while not reader.at("|", "end"):
        _option(reader, given)
    values, places = options(head, given)
    return Call(head.text, (view,), values, head.place, places)


def _function(head: Token) -> Function:
    if head.text in FUNCTIONS:
        return FUNCTIONS[head.text]
    close = difflib.get_close_matches(head.text[:64], FUNCTIONS, 1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(FUNCTIONS)}"
    raise ExpressionError(f"{head} is not a function; {hint}", head.place)
