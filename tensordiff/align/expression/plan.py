"""Plan: what shape and dtype an expression gives, from headers alone.

Every way in which tensors do not fit a function is found here, so ``do`` has nothing left to check.
A shape rule takes the call and what its tensors are; the rules themselves are in ``layout_plan``
and ``arithmetic_plan``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from tensordiff.align.expression.arithmetic_plan import ARITHMETIC
from tensordiff.align.expression.layout_plan import LAYOUT
from tensordiff.align.expression.place import ExpressionError
from tensordiff.align.expression.shapes import shown
from tensordiff.align.expression.tree import Call, Expression, Name, fold
from tensordiff.dump.model import Spec

MOST_DIMENSIONS = 32
MOST_BYTES = 1 << 34
"""What a function may make anew. A view of a tensor that is there already may be of any size."""
_MOST_ADDRESSED = 1 << 62

PLANS = LAYOUT | ARITHMETIC


class Step(NamedTuple):
    """One function as it was applied: what it was given and what it gave."""

    call: Call
    before: tuple[Spec, ...]
    after: Spec

    def __str__(self) -> str:
        with_dtype = any(spec.dtype != self.after.dtype for spec in self.before)
        given = ", ".join(_shown(spec, with_dtype) for spec in self.before)
        function = " ".join([self.call.function, *self.call.written_options()])
        return f"{function} of {given} -> {_shown(self.after, with_dtype)}"


def plan(expression: Expression, specs: Mapping[str, Spec]) -> Spec:
    """The shape and dtype that an expression gives; ``specs`` are those of the entries it names."""
    return fold(expression, lambda name: _look_up(name, specs), plan_call)


def steps(expression: Expression, specs: Mapping[str, Spec]) -> tuple[Step, ...]:
    """Every function applied, in order, with shapes before and after."""
    found: list[Step] = []

    def join(call: Call, before: tuple[Spec, ...]) -> Spec:
        found.append(Step(call, before, plan_call(call, before)))
        return found[-1].after

    fold(expression, lambda name: _look_up(name, specs), join)
    return tuple(found)


def plan_call(call: Call, specs: tuple[Spec, ...]) -> Spec:
    """What one function gives."""
    after = PLANS[call.function](call, *specs)
    if len(after.shape) > MOST_DIMENSIONS:
        raise call.wrong(f"{len(after.shape)} dimensions are more than {MOST_DIMENSIONS}")
    if math.prod(size or 1 for size in after.shape) * after.dtype.itemsize > _MOST_ADDRESSED:
        raise call.wrong(f"{shown(after.shape)} is larger than any tensor can be")
    if after.nbytes > MOST_BYTES and after.nbytes > max(spec.nbytes for spec in specs):
        raise call.wrong(f"{shown(after.shape)} of {after.dtype.name} would take {after.nbytes >> 30} GiB")
    return after


def _look_up(name: Name, specs: Mapping[str, Spec]) -> Spec:
    if name.text not in specs:
        raise ExpressionError(f"there is no entry {name.text!r}", name.place)
    return specs[name.text]


def _shown(spec: Spec, with_dtype: bool) -> str:
    return f"{spec.dtype.name} {shown(spec.shape)}" if with_dtype else shown(spec.shape)
