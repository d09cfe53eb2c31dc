"""Instructions that the compiled pass needs and numba does not offer, a few lines of LLVM each.

The bits of floats, 16-bit floats, memory at an address, a counter that threads share. Nothing here knows what is
measured.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload


@intrinsic  # type: ignore[untyped-decorator]
def bits_of(_context: Any, value: Any) -> Any:
    """A float's bits as an integer of its width: maxima of integers are vectorized, of floats not."""
    integer, width = (types.int32, 32) if value == types.float32 else (types.int64, 64)
    return integer(value), lambda _c, builder, _s, args: builder.bitcast(args[0], ir.IntType(width))


@intrinsic  # type: ignore[untyped-decorator]
def float_of(_context: Any, value: Any) -> Any:
    """The float that has these bits."""
    real, llvm = (types.float32, ir.FloatType()) if value == types.int32 else (types.float64, ir.DoubleType())
    return real(value), lambda _c, builder, _s, args: builder.bitcast(args[0], llvm)


@intrinsic  # type: ignore[untyped-decorator]
def steps_from(_context: Any, low: Any, high: Any) -> Any:
    """How many floats of the type lie from one up to another, both not negative; if it is lower, a great many."""
    integer, width = (types.uint32, 32) if low == types.float32 else (types.uint64, 64)

    def generate(_c: Any, builder: Any, _s: Any, args: Any) -> Any:
        below, above = (builder.bitcast(arg, ir.IntType(width)) for arg in args)
        return builder.sub(above, below)

    return integer(low, low), generate


@intrinsic  # type: ignore[untyped-decorator]
def count_if(_context: Any, total: Any, flag: Any) -> Any:
    """One more if the flag is set, in 32 bits: as wide as a float, so that a loop need not change width."""
    integer = ir.IntType(32)
    return types.int32(types.int32, types.boolean), lambda _c, builder, _s, args: builder.add(
        args[0], builder.zext(args[1], integer)
    )


@intrinsic  # type: ignore[untyped-decorator]
def _from_bfloat16(_context: Any, value: Any) -> Any:
    def generate(_c: Any, builder: Any, _s: Any, args: Any) -> Any:
        wide = builder.zext(args[0], ir.IntType(32))
        return builder.bitcast(builder.shl(wide, ir.Constant(ir.IntType(32), 16)), ir.FloatType())

    return types.float32(value), generate


@intrinsic  # type: ignore[untyped-decorator]
def _from_float16(_context: Any, value: Any) -> Any:
    def generate(_c: Any, builder: Any, _s: Any, args: Any) -> Any:
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(value), generate


def load(array: Any, i: Any) -> Any:
    """An element as a float."""


@overload(load, inline="always", strict=False)  # type: ignore[untyped-decorator]
def _load_typed(array: Any, i: Any) -> Any:
    if array.dtype == types.uint16:
        return lambda array, i: _from_bfloat16(array[i])
    if array.dtype == types.int16:
        return lambda array, i: _from_float16(array[i])
    return lambda array, i: array[i]


def like(sample: Any, value: Any) -> Any:
    """A constant in the sample's type: a float64 constant would widen the whole loop."""


@overload(like, inline="always", strict=False)  # type: ignore[untyped-decorator]
def _like_typed(sample: Any, value: Any) -> Any:
    if sample == types.float32:
        return lambda sample, value: np.float32(value)
    return lambda sample, value: np.float64(value)


_LARGEST_FLOAT32, _LARGEST_FLOAT64 = float(np.finfo(np.float32).max), float(np.finfo(np.float64).max)


def at_most_largest(sample: Any, value: Any) -> Any:
    """A float64 in the sample's type; the largest of the type where it would be infinite in it."""


@overload(at_most_largest, inline="always", strict=False)  # type: ignore[untyped-decorator]
def _at_most_largest_typed(sample: Any, value: Any) -> Any:
    if sample == types.float32:
        return lambda sample, value: np.float32(min(value, _LARGEST_FLOAT32))
    return lambda sample, value: min(value, _LARGEST_FLOAT64)


@intrinsic  # type: ignore[untyped-decorator]
def memory_at(typing: Any, address: Any, like: Any) -> Any:
    """The memory at an address, as elements of a type."""
    pointer = types.CPointer(like.dtype)

    def generate(context: Any, builder: Any, _: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(pointer))

    return pointer(types.int64, like), generate


@intrinsic  # type: ignore[untyped-decorator]
def take(typing: Any, taken: Any) -> Any:
    """The next number of a count that several threads draw from."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        counter = context.make_array(signature.args[0])(context, builder, values[0])
        return builder.atomic_rmw("add", counter.data, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(taken), generate
