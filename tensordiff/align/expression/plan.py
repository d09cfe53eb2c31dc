"""Planning: the shape and dtype of an expression, from headers alone.

Every way in which tensors do not fit a function is found here, so that ``evaluate`` has nothing left to check. Each
function has a shape rule, which takes the call and the specs of its tensors. Layout functions keep the dtype.
Arithmetic computes floats narrower than 32 bits in float32 and leaves the result there: rounding a sum back to bfloat16
would add an error that neither run has made. Integers and booleans must be cast first, so that an overflow cannot pass
for a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tensordiff.align.expression.lexer import ExpressionError
from tensordiff.align.expression.tree import Call, Expression, Name, fold
from tensordiff.dump.dtypes import DTYPES, DType, is_float
from tensordiff.dump.model import Spec

Shape = tuple[int, ...]
ShapeRule = Callable[..., Spec]
"""Takes the call and the spec of each tensor; returns the spec of the result or raises ``call.error``."""


def shown(shape: Shape) -> str:
    """A shape for people: ``[9, 64]``."""
    return f"[{', '.join(map(str, shape))}]"


def whole(call: Call, option: int) -> int:
    """An option that is a whole number, as parsing has checked."""
    value = call.options[option]
    if not isinstance(value, int):
        raise call.error(f"{value!r} is not a whole number", option=option)
    return value


def wholes(call: Call) -> Shape:
    """All options of a call whose options are whole numbers."""
    return tuple(whole(call, option) for option in range(len(call.options)))


def axis_of(call: Call, option: int, shape: Shape) -> int:
    """An option that is an axis of a shape, counted from the left."""
    axis = whole(call, option)
    if not -len(shape) <= axis < len(shape):
        raise call.error(f"axis {axis} is not one of the {len(shape)} dimensions of {shown(shape)}", option=option)
    return axis % len(shape)


def at_least(call: Call, dimensions: int, shape: Shape) -> None:
    """Raise for a tensor that has too few dimensions."""
    if len(shape) < dimensions:
        raise call.error(f"at least {dimensions} dimensions are needed, and {shown(shape)} has {len(shape)}", tensor=0)


def computed_in(dtype: DType) -> DType:
    """The dtype in which arithmetic on a float dtype is done."""
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype.newbyteorder("=")


def _elementwise(call: Call, *specs: Spec) -> Spec:
    for k in range(len(specs)):
        _must_be_float(call, specs, k)
    return Spec(_common_shape(call, specs), np.result_type(*(computed_in(spec.dtype) for spec in specs)))


def _activation(call: Call, x: Spec) -> Spec:
    _must_be_float(call, (x,), 0)
    if x.dtype.kind == "c":
        raise call.error(f"a tensor of {x.dtype.name} has no {call.function}", tensor=0)
    return Spec(x.shape, computed_in(x.dtype))


def _scale(call: Call, x: Spec) -> Spec:
    after = _elementwise(call, x)
    number = call.options[0]
    smallest, largest = float(np.finfo(after.dtype).tiny), float(np.finfo(after.dtype).max)
    if not isinstance(number, float) or (number and not smallest <= abs(number) <= largest):
        raise call.error(f"{number} does not fit {after.dtype.name}, in which it would be computed", option=0)
    return after


def _cast(call: Call, x: Spec) -> Spec:
    dtype = DTYPES[str(call.options[0])]
    if x.dtype.kind == "c" and dtype.kind != "c":
        raise call.error(f"{x.dtype.name} has an imaginary part that {dtype.name} cannot hold", option=0)
    if is_float(x.dtype) and not is_float(dtype):
        raise call.error(f"{x.dtype.name} to {dtype.name} would drop fractions", option=0)
    return Spec(x.shape, dtype)


def _must_be_float(call: Call, specs: Sequence[Spec], k: int) -> None:
    if not is_float(specs[k].dtype):
        raise call.error(f"it computes with floats, and this is {specs[k].dtype.name}; cast it to one first", tensor=k)


def _common_shape(call: Call, specs: Sequence[Spec]) -> Shape:
    """The shape of the largest tensor, to which all others must broadcast."""
    shapes = [spec.shape for spec in specs]
    for shape in shapes:
        if all(_broadcasts_to(other, shape) for other in shapes):
            return shape
    raise call.error(f"{', '.join(map(shown, shapes))} are not of one shape, and cannot be repeated to the largest")


def _broadcasts_to(shape: Shape, target: Shape) -> bool:
    return len(shape) <= len(target) and all(
        size in (1, wanted) for size, wanted in zip(reversed(shape), reversed(target), strict=False)
    )


ARITHMETIC: dict[str, ShapeRule] = {
    "sum": _elementwise,
    "sub": _elementwise,
    "mul": _elementwise,
    "scale": _scale,
    "silu": _activation,
    "gelu": _activation,
    "gelu_tanh": _activation,
    "relu": _activation,
    "cast": _cast,
}


def _cat(call: Call, *specs: Spec) -> Spec:
    first = specs[0]
    at_least(call, 1, first.shape)
    axis = axis_of(call, 0, first.shape)
    for k, spec in enumerate(specs):
        if _without(spec.shape, axis) != _without(first.shape, axis) or len(spec.shape) != len(first.shape):
            facts = f"{shown(spec.shape)} and {shown(first.shape)} differ elsewhere than along axis {axis}"
            raise call.error(facts, tensor=k)
        if spec.dtype.name != first.dtype.name:
            facts = f"{spec.dtype.name} and {first.dtype.name} cannot be joined; cast one of them first"
            raise call.error(facts, tensor=k)
    return Spec(_with(first.shape, axis, sum(spec.shape[axis] for spec in specs)), first.dtype)


def _squeeze(call: Call, x: Spec) -> Spec:
    axis = axis_of(call, 0, x.shape)
    if x.shape[axis] != 1:
        raise call.error(f"axis {axis} of {shown(x.shape)} has size {x.shape[axis]}, not 1", option=0)
    return Spec(_without(x.shape, axis), x.dtype)


def _unsqueeze(call: Call, x: Spec) -> Spec:
    axis = axis_of(call, 0, (*x.shape, 1))
    return Spec((*x.shape[:axis], 1, *x.shape[axis:]), x.dtype)


def _reshape(call: Call, x: Spec) -> Spec:
    sizes = list(wholes(call))
    for k, size in enumerate(sizes):
        if size < -1 or (size == -1 and -1 in sizes[:k]):
            raise call.error("a size is a whole number, or -1 once for what is left", option=k)
    known = math.prod(size for size in sizes if size != -1)
    if -1 in sizes and known:
        sizes[sizes.index(-1)] = x.size // known
    if -1 in sizes or math.prod(sizes) != x.size:
        raise call.error(f"the {x.size} elements of {shown(x.shape)} do not fill {shown(wholes(call))}")
    return Spec(tuple(sizes), x.dtype)


def _flatten(call: Call, x: Spec) -> Spec:
    first, last = axis_of(call, 0, x.shape), axis_of(call, 1, x.shape)
    if first > last:
        raise call.error(f"axis {first} of {shown(x.shape)} stands after axis {last}", option=0)
    return Spec((*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :]), x.dtype)


def _transpose(call: Call, x: Spec) -> Spec:
    a, b = axis_of(call, 0, x.shape), axis_of(call, 1, x.shape)
    return Spec(_with(_with(x.shape, a, x.shape[b]), b, x.shape[a]), x.dtype)


def _permute(call: Call, x: Spec) -> Spec:
    axes = [axis_of(call, k, x.shape) for k in range(len(call.options))]
    if sorted(axes) != list(range(len(x.shape))):
        raise call.error(
            f"{shown(wholes(call))} does not name each of the {len(x.shape)} axes of {shown(x.shape)} once"
        )
    return Spec(tuple(x.shape[axis] for axis in axes), x.dtype)


def _slice(call: Call, x: Spec) -> Spec:
    axis = axis_of(call, 0, x.shape)
    size = x.shape[axis]
    start, stop = _bound(call, 1, size, 0), _bound(call, 2, size, size)
    if start >= stop and size:
        raise call.error(f"nothing lies from {start} up to {stop} along axis {axis} of {shown(x.shape)}")
    return Spec(_with(x.shape, axis, stop - start), x.dtype)


def _bound(call: Call, option: int, size: int, default: int) -> int:
    if call.options[option] is None:
        return default
    bound = whole(call, option)
    if not -size <= bound <= size:
        raise call.error(f"{bound} is beyond an axis of size {size}", option=option)
    return bound + size if bound < 0 else bound


def _split(call: Call, x: Spec) -> Spec:
    part, parts, axis = whole(call, 0), whole(call, 1), axis_of(call, 2, x.shape)
    if parts < 1 or x.shape[axis] % parts:
        raise call.error(f"axis {axis} of {shown(x.shape)} cannot be cut into {parts} equal parts", option=1)
    if not 0 <= part < parts:
        raise call.error(f"{parts} parts are counted from 0 to {parts - 1}; there is no part {part}", option=0)
    return Spec(_with(x.shape, axis, x.shape[axis] // parts), x.dtype)


def _last_token(call: Call, x: Spec) -> Spec:
    at_least(call, 2, x.shape)
    if not x.shape[-2]:
        raise call.error(f"{shown(x.shape)} has no tokens", tensor=0)
    return Spec(_one_token(x.shape), x.dtype)


def _token(call: Call, x: Spec) -> Spec:
    at_least(call, 2, x.shape)
    count, position = x.shape[-2], whole(call, 0)
    if not -count <= position < count:
        raise call.error(f"{shown(x.shape)} has {count} tokens; there is no token {position}", option=0)
    return Spec(_one_token(x.shape), x.dtype)


def _one_token(shape: Shape) -> Shape:
    """One row per sequence: [B, S, H] gives [B, H]. A single sequence [S, H] gives [1, H], as engines write it."""
    return (*shape[:-2], shape[-1]) if len(shape) > 2 else (1, shape[-1])


def _heads(call: Call, x: Spec) -> Spec:
    at_least(call, 1, x.shape)
    count, width = whole(call, 0), x.shape[-1]
    if count < 1 or width % count:
        raise call.error(f"the last axis of {shown(x.shape)} cannot be cut into {count} equal heads", option=0)
    return Spec((*x.shape[:-1], count, width // count), x.dtype)


def _swap_heads(call: Call, x: Spec) -> Spec:
    at_least(call, 3, x.shape)
    return Spec((*x.shape[:-3], x.shape[-2], x.shape[-3], x.shape[-1]), x.dtype)


def _interleave(call: Call, x: Spec) -> Spec:
    at_least(call, 1, x.shape)
    if x.shape[-1] % 2:
        raise call.error(f"the last axis of {shown(x.shape)} has no two equal halves", tensor=0)
    return x


def _with(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :])


LAYOUT: dict[str, ShapeRule] = {
    "cat": _cat,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "reshape": _reshape,
    "flatten": _flatten,
    "transpose": _transpose,
    "permute": _permute,
    "slice": _slice,
    "split": _split,
    "last_token": _last_token,
    "token": _token,
    "heads": _heads,
    "swap_heads": _swap_heads,
    "interleave": _interleave,
    "deinterleave": _interleave,
}


MAX_DIMENSIONS = 32
MAX_BYTES = 1 << 34
"""The most that a function may allocate. A view of an existing tensor may be of any size."""
_MAX_ADDRESSED = 1 << 62

SHAPE_RULES = LAYOUT | ARITHMETIC


class PlanStep(NamedTuple):
    """One function as it was applied: the specs before and after."""

    call: Call
    before: tuple[Spec, ...]
    after: Spec

    def __str__(self) -> str:
        with_dtype = any(spec.dtype != self.after.dtype for spec in self.before)
        given = ", ".join(_shown(spec, with_dtype) for spec in self.before)
        function = " ".join([self.call.function, *self.call.written_options()])
        return f"{function} of {given} -> {_shown(self.after, with_dtype)}"


def plan(expression: Expression, specs: Mapping[str, Spec]) -> Spec:
    """The shape and dtype of an expression; ``specs`` are those of the entries it names."""
    return fold(expression, lambda name: _look_up(name, specs), plan_call)


def steps(expression: Expression, specs: Mapping[str, Spec]) -> tuple[PlanStep, ...]:
    """Every function in the order it is applied, with specs before and after."""
    applied: list[PlanStep] = []

    def join(call: Call, before: tuple[Spec, ...]) -> Spec:
        applied.append(PlanStep(call, before, plan_call(call, before)))
        return applied[-1].after

    fold(expression, lambda name: _look_up(name, specs), join)
    return tuple(applied)


def plan_call(call: Call, specs: tuple[Spec, ...]) -> Spec:
    """The spec of one function's result."""
    after = SHAPE_RULES[call.function](call, *specs)
    if len(after.shape) > MAX_DIMENSIONS:
        raise call.error(f"{len(after.shape)} dimensions are more than {MAX_DIMENSIONS}")
    if math.prod(size or 1 for size in after.shape) * after.dtype.itemsize > _MAX_ADDRESSED:
        raise call.error(f"{shown(after.shape)} is larger than any tensor can be")
    if after.nbytes > MAX_BYTES and after.nbytes > max(spec.nbytes for spec in specs):
        raise call.error(f"{shown(after.shape)} of {after.dtype.name} would take {after.nbytes >> 30} GiB")
    return after


def _look_up(name: Name, specs: Mapping[str, Spec]) -> Spec:
    if name.text not in specs:
        raise ExpressionError(f"there is no entry {name.text!r}", name.span)
    return specs[name.text]


def _shown(spec: Spec, with_dtype: bool) -> str:
    return f"{spec.dtype.name} {shown(spec.shape)}" if with_dtype else shown(spec.shape)
