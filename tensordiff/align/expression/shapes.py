"""What the shape rules share: showing a shape, and reading an axis or another whole number of a call."""

from __future__ import annotations

from collections.abc import Callable

from tensordiff.align.expression.tree import Call
from tensordiff.dump.model import Spec

Shape = tuple[int, ...]
Rule = Callable[..., Spec]
"""Takes the call and one spec a tensor, gives the spec of the result or raises ``call.wrong``."""


def shown(shape: Shape) -> str:
    """A shape for people: ``[9, 64]``."""
    return f"[{', '.join(map(str, shape))}]"


def whole(call: Call, option: int) -> int:
    """An option that is a whole number: parsing has seen to it."""
    value = call.options[option]
    if not isinstance(value, int):
        raise call.wrong(f"{value!r} is not a whole number", option=option)
    return value


def wholes(call: Call) -> Shape:
    """All options of a call whose options are whole numbers."""
    return tuple(whole(call, option) for option in range(len(call.options)))


def axis_of(call: Call, option: int, shape: Shape) -> int:
    """An option that is an axis of a shape, counted from the left."""
    axis = whole(call, option)
    if not -len(shape) <= axis < len(shape):
        raise call.wrong(f"axis {axis} is not one of the {len(shape)} dimensions of {shown(shape)}", option=option)
    return axis % len(shape)


def at_least(call: Call, dimensions: int, shape: Shape) -> None:
    """Refuse a tensor that has too few dimensions."""
    if len(shape) < dimensions:
        raise call.wrong(f"at least {dimensions} dimensions are needed, and {shown(shape)} has {len(shape)}", tensor=0)
