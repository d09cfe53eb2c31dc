"""An output that one side takes from a part as it is: found where healthy layers reach as far; not where both do."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tensordiff.compare.comparer import Comparer
from tensordiff.compare.row import Row
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Origin
from tests.compare.judge.few_bits import off, short
from tests.compare.test_comparer import rows
from tests.making import numbers, pairs

LOGITS = 4.0 * numbers(1, 24, 160)
CAP = 20.0


def capped(x: Array) -> Array:
    return np.asarray(CAP * np.tanh(x / CAP))


def whole(head: tuple[Array, Array], given: tuple[Array, Array]) -> Row:
    """The row of a model's output, from what its head gave and what the model made of it, on both sides."""
    other = {"model.layers.0": LOGITS}, {"model.layers.0": off(LOGITS, 0.016)}
    sides = (
        short({**before, "model.lm_head": part, "model": made})
        for before, part, made in zip(other, head, given, strict=True)
    )
    return rows(*sides)[-1]  # type: ignore[arg-type]


NEAR = off(LOGITS, 0.005)


@pytest.mark.parametrize("is_reference", [True, False])
def test_a_cap_on_one_side_alone_is_an_error_of_the_model(is_reference: bool) -> None:
    given = (capped(LOGITS), NEAR) if is_reference else (LOGITS, capped(NEAR))
    row = whole((LOGITS, NEAR), given)
    assert row.diff is not None and 0.03 < row.diff.rel_l2 < 0.06  # within what healthy layers reach
    assert row.verdict.name == "diverges"
    side = "candidate" if is_reference else "reference"
    assert f"the {side}'s is what lm_head gives, unchanged" in row.verdict.why


def test_on_both_sides_or_on_neither_it_is_none() -> None:
    assert whole((LOGITS, NEAR), (LOGITS, NEAR)).verdict.name == "agrees"
    assert whole((LOGITS, NEAR), (capped(LOGITS), off(capped(LOGITS), 0.04))).verdict.name == "drifts"


def test_less_than_rounding_is_none() -> None:
    """Both are cast, and one is rounded once more."""
    rounded = LOGITS.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert whole((LOGITS, NEAR), (rounded, NEAR)).verdict.name == "agrees"


def test_a_part_that_was_given_the_reference_inputs_shows_nothing() -> None:
    """It is right, and its module made what it gives of its own, which drifted."""
    drifted = off(LOGITS, 0.04)
    sides = (
        short({"model.layers.0": before, "model.lm_head": part, "model": made})
        for before, part, made in ((LOGITS, LOGITS, LOGITS), (drifted, NEAR, drifted))
    )
    before, part, made = pairs(*sides)
    assert [row.verdict.name for row in Comparer().rows([before, part, made])][-1] == "diverges"
    injected = replace(part, candidate=part.candidate._replace(origin=Origin(injected=("model.lm_head-input_0",))))
    assert [row.verdict.name for row in Comparer().rows([before, injected, made])][-1] == "drifts"
