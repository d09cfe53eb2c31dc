"""Shape rules of the functions that only lay the same elements out anew. None changes a dtype."""

from __future__ import annotations

import math

from tensordiff.align.expression.shapes import Rule, Shape, at_least, axis_of, shown, whole, wholes
from tensordiff.align.expression.tree import Call
from tensordiff.dump.model import Spec


def _cat(call: Call, *specs: Spec) -> Spec:
    first = specs[0]
    at_least(call, 1, first.shape)
    axis = axis_of(call, 0, first.shape)
    for k, spec in enumerate(specs):
        if _without(spec.shape, axis) != _without(first.shape, axis) or len(spec.shape) != len(first.shape):
            facts = f"{shown(spec.shape)} and {shown(first.shape)} differ elsewhere than along axis {axis}"
            raise call.wrong(facts, tensor=k)
        if spec.dtype.name != first.dtype.name:
            facts = f"{spec.dtype.name} and {first.dtype.name} cannot be joined; cast one of them first"
            raise call.wrong(facts, tensor=k)
    return Spec(_with(first.shape, axis, sum(spec.shape[axis] for spec in specs)), first.dtype)


def _squeeze(call: Call, x: Spec) -> Spec:
    axis = axis_of(call, 0, x.shape)
    if x.shape[axis] != 1:
        raise call.wrong(f"axis {axis} of {shown(x.shape)} has size {x.shape[axis]}, not 1", option=0)
    return Spec(_without(x.shape, axis), x.dtype)


def _unsqueeze(call: Call, x: Spec) -> Spec:
    axis = axis_of(call, 0, (*x.shape, 1))
    return Spec((*x.shape[:axis], 1, *x.shape[axis:]), x.dtype)


def _reshape(call: Call, x: Spec) -> Spec:
    sizes = list(wholes(call))
    for k, size in enumerate(sizes):
        if size < -1 or (size == -1 and -1 in sizes[:k]):
            raise call.wrong("a size is a whole number, or -1 once for what is left", option=k)
    known = math.prod(size for size in sizes if size != -1)
    if -1 in sizes and known:
        sizes[sizes.index(-1)] = x.size // known
    if -1 in sizes or math.prod(sizes) != x.size:
        raise call.wrong(f"the {x.size} elements of {shown(x.shape)} do not fill {shown(wholes(call))}")
    return Spec(tuple(sizes), x.dtype)


def _flatten(call: Call, x: Spec) -> Spec:
    first, last = axis_of(call, 0, x.shape), axis_of(call, 1, x.shape)
    if first > last:
        raise call.wrong(f"axis {first} of {shown(x.shape)} stands after axis {last}", option=0)
    return Spec((*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :]), x.dtype)


def _transpose(call: Call, x: Spec) -> Spec:
    a, b = axis_of(call, 0, x.shape), axis_of(call, 1, x.shape)
    return Spec(_with(_with(x.shape, a, x.shape[b]), b, x.shape[a]), x.dtype)


def _permute(call: Call, x: Spec) -> Spec:
    axes = [axis_of(call, k, x.shape) for k in range(len(call.options))]
    if sorted(axes) != list(range(len(x.shape))):
        raise call.wrong(
            f"{shown(wholes(call))} does not name each of the {len(x.shape)} axes of {shown(x.shape)} once"
        )
    return Spec(tuple(x.shape[axis] for axis in axes), x.dtype)


def _slice(call: Call, x: Spec) -> Spec:
    axis = axis_of(call, 0, x.shape)
    size = x.shape[axis]
    start, stop = _bound(call, 1, size, 0), _bound(call, 2, size, size)
    if start >= stop and size:
        raise call.wrong(f"nothing lies from {start} up to {stop} along axis {axis} of {shown(x.shape)}")
    return Spec(_with(x.shape, axis, stop - start), x.dtype)


def _bound(call: Call, option: int, size: int, default: int) -> int:
    if call.options[option] is None:
        return default
    bound = whole(call, option)
    if not -size <= bound <= size:
        raise call.wrong(f"{bound} is beyond an axis of size {size}", option=option)
    return bound + size if bound < 0 else bound


def _split(call: Call, x: Spec) -> Spec:
    part, parts, axis = whole(call, 0), whole(call, 1), axis_of(call, 2, x.shape)
    if parts < 1 or x.shape[axis] % parts:
        raise call.wrong(f"axis {axis} of {shown(x.shape)} cannot be cut into {parts} equal parts", option=1)
    if not 0 <= part < parts:
        raise call.wrong(f"{parts} parts are counted from 0 to {parts - 1}; there is no part {part}", option=0)
    return Spec(_with(x.shape, axis, x.shape[axis] // parts), x.dtype)


def _last_token(call: Call, x: Spec) -> Spec:
    at_least(call, 2, x.shape)
    if not x.shape[-2]:
        raise call.wrong(f"{shown(x.shape)} has no tokens", tensor=0)
    return Spec(_one_token(x.shape), x.dtype)


def _token(call: Call, x: Spec) -> Spec:
    at_least(call, 2, x.shape)
    count, position = x.shape[-2], whole(call, 0)
    if not -count <= position < count:
        raise call.wrong(f"{shown(x.shape)} has {count} tokens; there is no token {position}", option=0)
    return Spec(_one_token(x.shape), x.dtype)


def _one_token(shape: Shape) -> Shape:
    """One row a sequence: [B, S, H] gives [B, H]. A lone sequence [S, H] gives [1, H], as engines write it."""
    return (*shape[:-2], shape[-1]) if len(shape) > 2 else (1, shape[-1])


def _heads(call: Call, x: Spec) -> Spec:
    at_least(call, 1, x.shape)
    count, width = whole(call, 0), x.shape[-1]
    if count < 1 or width % count:
        raise call.wrong(f"the last axis of {shown(x.shape)} cannot be cut into {count} equal heads", option=0)
    return Spec((*x.shape[:-1], count, width // count), x.dtype)


def _swap_heads(call: Call, x: Spec) -> Spec:
    at_least(call, 3, x.shape)
    return Spec((*x.shape[:-3], x.shape[-2], x.shape[-3], x.shape[-1]), x.dtype)


def _interleave(call: Call, x: Spec) -> Spec:
    at_least(call, 1, x.shape)
    if x.shape[-1] % 2:
        raise call.wrong(f"the last axis of {shown(x.shape)} has no two equal halves", tensor=0)
    return x


def _with(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :])


LAYOUT: dict[str, Rule] = {
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
