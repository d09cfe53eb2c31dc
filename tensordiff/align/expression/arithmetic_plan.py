"""Shape and dtype rules of the functions that compute.

Floats narrower than 32 bits are computed with in float32 and stay so: rounding a sum back to
bfloat16 would add an error that neither run has made. Integers and booleans must be cast first, so
that no overflow can pass for a value.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensordiff.align.expression.shapes import Rule, Shape, shown
from tensordiff.align.expression.tree import Call
from tensordiff.dump.dtypes import DTYPES, DType, is_float
from tensordiff.dump.model import Spec


def computed_in(dtype: DType) -> DType:
    """The type that arithmetic on a float type is done in."""
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype.newbyteorder("=")


def _elementwise(call: Call, *specs: Spec) -> Spec:
    for k in range(len(specs)):
        _must_be_float(call, specs, k)
    return Spec(_common_shape(call, specs), np.result_type(*(computed_in(spec.dtype) for spec in specs)))


def _activation(call: Call, x: Spec) -> Spec:
    _must_be_float(call, (x,), 0)
    if x.dtype.kind == "c":
        raise call.wrong(f"a tensor of {x.dtype.name} has no {call.function}", tensor=0)
    return Spec(x.shape, computed_in(x.dtype))


def _scale(call: Call, x: Spec) -> Spec:
    after = _elementwise(call, x)
    number = call.options[0]
    smallest, largest = float(np.finfo(after.dtype).tiny), float(np.finfo(after.dtype).max)
    if not isinstance(number, float) or (number and not smallest <= abs(number) <= largest):
        raise call.wrong(f"{number} does not fit {after.dtype.name}, in which it would be computed", option=0)
    return after


def _cast(call: Call, x: Spec) -> Spec:
    dtype = DTYPES[str(call.options[0])]
    if x.dtype.kind == "c" and dtype.kind != "c":
        raise call.wrong(f"{x.dtype.name} has an imaginary part that {dtype.name} cannot hold", option=0)
    if is_float(x.dtype) and not is_float(dtype):
        raise call.wrong(f"{x.dtype.name} to {dtype.name} would drop fractions", option=0)
    return Spec(x.shape, dtype)


def _must_be_float(call: Call, specs: Sequence[Spec], k: int) -> None:
    if not is_float(specs[k].dtype):
        raise call.wrong(f"it computes with floats, and this is {specs[k].dtype.name}; cast it to one first", tensor=k)


def _common_shape(call: Call, specs: Sequence[Spec]) -> Shape:
    """The shape of the largest tensor, to which the others may be repeated; none may outgrow it."""
    shapes = [spec.shape for spec in specs]
    for shape in shapes:
        if all(_repeats_to(other, shape) for other in shapes):
            return shape
    raise call.wrong(f"{', '.join(map(shown, shapes))} are not of one shape, and cannot be repeated to the largest")


def _repeats_to(shape: Shape, target: Shape) -> bool:
    return len(shape) <= len(target) and all(
        size in (1, wanted) for size, wanted in zip(reversed(shape), reversed(target), strict=False)
    )


ARITHMETIC: dict[str, Rule] = {
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
