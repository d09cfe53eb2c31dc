"""The tree that an expression is, and its canonical text.

Two expressions are equal when they say the same, wherever their tokens stood. ``str`` of a tree
parses to an equal tree: ``parse`` reads an expression back, ``parse_view`` a chain. Trees are
walked with ``fold`` and ``leaves`` and nowhere by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tensordiff.align.expression.functions import FUNCTIONS, Option
from tensordiff.align.expression.place import ExpressionError, Place
from tensordiff.align.expression.tokens import written_name
from tensordiff.dump.names import NameParts, parse_name

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Name:
    """An entry, by layer, call and port, as it was written; ``{i}`` stands for a number."""

    text: str
    place: Place | None = field(default=None, compare=False, repr=False)

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
    place: Place | None = field(default=None, compare=False, repr=False)
    option_places: tuple[Place | None, ...] = field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        if _is_chain(self):
            return _written_chain(self)
        return f"{self.function}({', '.join([*map(str, self.tensors), *self.written_options()])})"

    def written_options(self) -> list[str]:
        """The options as text, without those that go without saying."""
        function = FUNCTIONS[self.function]
        if function.rest is not None:
            return [written_option(value) for value in self.options]
        pairs = list(zip(function.parameters, self.options, strict=True))
        while pairs and not pairs[-1][0].required and pairs[-1][0].default == pairs[-1][1]:
            pairs.pop()
        return [f"{p.name}={written_option(v)}" if p.by_name else written_option(v) for p, v in pairs]

    def wrong(self, sentence: str, *, option: int | None = None, tensor: int | None = None) -> ExpressionError:
        """An error that names the function and points at it, or at what it was given."""
        place = self.place
        if tensor is not None:
            place = self.tensors[tensor].place or place
        elif option is not None and option < len(self.option_places):
            place = self.option_places[option] or place
        return ExpressionError(f"{self.function}: {sentence}", place)


Expression = Name | Call
HERE = Name("")
"""The entry at hand: what a view is applied to. No entry has an empty name."""


def fold(expression: Expression, leaf: Callable[[Name], T], join: Callable[[Call, tuple[T, ...]], T]) -> T:
    """Work a tree out from its names up."""
    if isinstance(expression, Name):
        return leaf(expression)
    return join(expression, tuple(fold(tensor, leaf, join) for tensor in expression.tensors))


def leaves(expression: Expression) -> Iterator[Name]:
    """The names of a tree, as often as they stand in it."""
    if isinstance(expression, Name):
        yield expression
    else:
        yield from (name for tensor in expression.tensors for name in leaves(tensor))


def rebuild(expression: Expression, leaf: Callable[[Name], Expression]) -> Expression:
    """The same tree with something else at its names."""
    return fold(expression, leaf, lambda call, tensors: replace(call, tensors=tensors))


def view_of(view: Expression, expression: Expression) -> Expression:
    """A view applied to what an expression gives."""
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
