"""Evaluating an expression with numpy.

Each call is planned for the actual arrays before it is computed, so numpy is never asked for something that it would
refuse. Functions that only change the layout return views of what was read, if numpy can.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, reduce

import numpy as np

from tensordiff.align.expression import activations
from tensordiff.align.expression.parse import parse_view
from tensordiff.align.expression.plan import computed_in, plan_call, whole, wholes
from tensordiff.align.expression.tree import Call, Expression, fold
from tensordiff.dump.dtypes import Array, is_float
from tensordiff.dump.model import Spec
from tensordiff.util.memory import shortage

_COPIES = {"cat": 1, "interleave": 1, "deinterleave": 1, "cast": 2, "scale": 2} | dict.fromkeys(
    ("sum", "sub", "mul", "silu", "gelu", "gelu_tanh", "relu"), 3
)
"""How many times the size of its result a function allocates, counting converted operands; others change the layout
only."""
ReadEntry = Callable[[str], Array]
_Evaluator = Callable[..., Array]
"""Takes the call, the spec planned for it and its tensors."""


def evaluate(expression: Expression, read: ReadEntry) -> Array:
    """The values of an expression; ``read`` returns those of an entry and is called once for each."""
    read_once = cache(read)
    return fold(expression, lambda name: read_once(name.text), _apply)


def evaluate_view(view: str, array: Array) -> Array:
    """An array under a view; itself if the view is empty."""
    return evaluate(parse_view(view), lambda _: array) if view else array


def _apply(call: Call, tensors: tuple[Array, ...]) -> Array:
    after = plan_call(call, tuple(Spec(tensor.shape, tensor.dtype) for tensor in tensors))
    if numbers := shortage(after.nbytes * _COPIES.get(call.function, 0)):
        raise call.error(f"it takes {numbers}")
    try:
        with np.errstate(all="ignore"):  # inf and NaN are results here
            return EVALUATORS[call.function](call, after, *tensors)
    except MemoryError as error:
        raise call.error(f"there is no memory for {after.nbytes} bytes more") from error


def _cat(call: Call, _: Spec, *tensors: Array) -> Array:
    return np.concatenate(tensors, axis=whole(call, 0), dtype=tensors[0].dtype)


def _reshape(_: Call, after: Spec, x: Array) -> Array:
    return x.reshape(after.shape)


def _transpose(call: Call, _: Spec, x: Array) -> Array:
    return np.swapaxes(x, whole(call, 0), whole(call, 1))


def _permute(call: Call, _: Spec, x: Array) -> Array:
    return np.transpose(x, wholes(call))


def _slice(call: Call, _: Spec, x: Array) -> Array:
    start, stop = (None if call.options[k] is None else whole(call, k) for k in (1, 2))
    return _cut(x, whole(call, 0), start, stop)


def _split(call: Call, after: Spec, x: Array) -> Array:
    part, _, axis = wholes(call)
    width = after.shape[axis]
    return _cut(x, axis, part * width, (part + 1) * width)


def _cut(x: Array, axis: int, start: int | None, stop: int | None) -> Array:
    index = [slice(None)] * x.ndim
    index[axis] = slice(start, stop)
    return x[tuple(index)]


def _token(call: Call, after: Spec, x: Array) -> Array:
    position = whole(call, 0) if call.options else -1
    return x[..., position, :].reshape(after.shape)


def _swap_heads(_: Call, __: Spec, x: Array) -> Array:
    return np.swapaxes(x, -3, -2)


def _interleave(_: Call, after: Spec, x: Array) -> Array:
    halves = x.reshape(*x.shape[:-1], 2, x.shape[-1] // 2)
    return np.swapaxes(halves, -1, -2).reshape(after.shape)


def _deinterleave(_: Call, after: Spec, x: Array) -> Array:
    neighbours = x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
    return np.swapaxes(neighbours, -1, -2).reshape(after.shape)


def _elementwise(combine: Callable[[Array, Array], Array]) -> _Evaluator:
    """A function of two tensors, applied from the left to any number of them."""

    def evaluator(_: Call, after: Spec, *tensors: Array) -> Array:
        return np.asarray(reduce(combine, (tensor.astype(after.dtype, copy=False) for tensor in tensors)))

    return evaluator


def _activation(function: Callable[[Array], Array]) -> _Evaluator:
    def evaluator(_: Call, after: Spec, x: Array) -> Array:
        return np.asarray(function(x.astype(after.dtype, copy=False)), dtype=after.dtype)

    return evaluator


def _scale(call: Call, after: Spec, x: Array) -> Array:
    return np.asarray(x.astype(after.dtype, copy=False) * after.dtype.type(call.options[0]))


def _cast(call: Call, after: Spec, x: Array) -> Array:
    if not is_float(after.dtype) and x.size:
        _must_fit(call, after, x)
    if is_float(x.dtype) and x.dtype != after.dtype:
        x = x.astype(computed_in(x.dtype), copy=False)  # exact; numpy cannot cast between all narrow types
    return x.astype(after.dtype, copy=False)


def _must_fit(call: Call, after: Spec, x: Array) -> None:
    low, high = (0, 1) if after.dtype.kind == "b" else (np.iinfo(after.dtype).min, np.iinfo(after.dtype).max)
    for value in (int(x.min()), int(x.max())):
        if not low <= value <= high:
            raise call.error(f"{value} does not fit {after.dtype.name}", option=0)


EVALUATORS: dict[str, _Evaluator] = {
    "cat": _cat,
    "squeeze": _reshape,
    "unsqueeze": _reshape,
    "reshape": _reshape,
    "flatten": _reshape,
    "heads": _reshape,
    "transpose": _transpose,
    "permute": _permute,
    "slice": _slice,
    "split": _split,
    "last_token": _token,
    "token": _token,
    "swap_heads": _swap_heads,
    "interleave": _interleave,
    "deinterleave": _deinterleave,
    "sum": _elementwise(np.add),
    "sub": _elementwise(np.subtract),
    "mul": _elementwise(np.multiply),
    "scale": _scale,
    "cast": _cast,
    "silu": _activation(activations.silu),
    "gelu": _activation(activations.gelu),
    "gelu_tanh": _activation(activations.gelu_tanh),
    "relu": _activation(activations.relu),
}
