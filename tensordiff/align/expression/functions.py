"""The functions of the language: what each takes and what it is for.

A function takes tensors first, then options: whole numbers, numbers, an element type. What they do
to a shape is in ``plan``, what they do to values in ``do``; all three tables have the same keys.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Option = int | float | str | None
Kind = Literal["int", "int or none", "number", "dtype"]


class Parameter(NamedTuple):
    """An option that a function takes."""

    name: str
    kind: Kind = "int"
    required: bool = True
    default: Option = None
    by_name: bool = False
    """Whether canonical text names it: ``axis=0``."""


class Function(NamedTuple):
    """What a function takes, in the order it is written."""

    help: str
    tensors: int = 1
    more_tensors: bool = False
    """Whether any number of tensors may follow; options are then given by name."""
    parameters: tuple[Parameter, ...] = ()
    rest: str | None = None
    """What the whole numbers are that follow in any number, where they may."""

    @property
    def is_view(self) -> bool:
        """Whether it can stand in a chain: one tensor in, one out."""
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
    "relu": _one("what is negative becomes 0"),
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
