"""Gate and up swapped within a gated product."""

from __future__ import annotations

import numpy as np
import pytest

from tensordiff.align.expression import activations as known
from tensordiff.compare.hint.catalogue import find_hint
from tensordiff.compare.hint.context import HintContext
from tensordiff.dump.dtypes import Array
from tests.making import numbers

GATE, UP = numbers(9, 64, seed=1), numbers(9, 64, seed=2)
CONTEXT = HintContext(near={"mlp.gate_proj": GATE, "mlp.up_proj": UP})


def product(one: Array, other: Array, function: str = "silu") -> Array:
    return np.asarray(getattr(known, function)(one.astype("f8")) * other).astype("f4")


@pytest.mark.parametrize("function", ["silu", "gelu", "relu"])
@pytest.mark.parametrize(("one", "other"), [(GATE, UP), (UP, GATE)])
def test_swapped(one: Array, other: Array, function: str) -> None:
    hint = find_hint(product(one, other, function), product(other, one, function), CONTEXT)
    assert hint is not None and hint.kind == "gate_swapped"
    names = ("mlp.up_proj", "mlp.gate_proj") if one is GATE else ("mlp.gate_proj", "mlp.up_proj")
    assert hint.sentence == (
        f"{function} is applied to {names[0]}, and in the reference to {names[1]}: the two are swapped"
    )


@pytest.mark.parametrize(
    "wrong", [product(GATE, UP, "gelu"), product(GATE, GATE), 1.5 * product(UP, GATE), numbers(9, 64, seed=3)]
)
def test_another_error_is_not_called_that(wrong: Array) -> None:
    hint = find_hint(product(GATE, UP), wrong, CONTEXT)
    assert hint is None or hint.kind != "gate_swapped"
