"""What a run says of itself and is believed: its type, where values bear it out, and that its model has no experts."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Dump
from tensordiff.session.run_facts import has_experts, run_dtypes
from tests.making import held, numbers

EXACT = numbers(24, 64)
ROUNDED = EXACT.astype(ml_dtypes.bfloat16).astype(np.float32)


def dump(logits: Array, dtype: str | None) -> Dump:
    made = held({"layers.0": EXACT, "lm_head": logits})
    return replace(made, facts={"dtype": dtype} if dtype else {})


@pytest.mark.parametrize(
    ("logits", "dtype", "believed"),
    [
        (ROUNDED, "bfloat16", "bfloat16"),
        (ROUNDED.astype(ml_dtypes.bfloat16), "bfloat16", "bfloat16"),
        (EXACT, "bfloat16", "float64"),  # it holds what bfloat16 could not
        (ROUNDED, "float9", "float64"),
        (ROUNDED, None, "float64"),
    ],
)
def test_a_candidate_is_believed_by_its_values(logits: Array, dtype: str | None, believed: str) -> None:
    assert run_dtypes(dump(EXACT, "float32"), dump(logits, dtype)) == ("float32", believed)


def test_a_reference_is_believed_and_nothing_is_made_up() -> None:
    assert run_dtypes(dump(EXACT, "bfloat16"), dump(EXACT, None)) == ("bfloat16", "float64")
    assert run_dtypes(dump(EXACT, None), dump(EXACT, None)) is None


def test_a_reference_that_names_eight_bits_is_believed_by_its_values() -> None:
    few = EXACT.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert run_dtypes(dump(EXACT, "float8_e4m3fn"), dump(EXACT, None)) is None
    assert run_dtypes(dump(few, "float8_e4m3fn"), dump(few, None)) == ("float8_e4m3fn", "float64")


@pytest.mark.parametrize(
    ("model", "has"),
    [
        ({"experts": False}, False),
        ({"experts": True}, True),
        ({"experts": 1}, None),
        ({}, None),
        (None, None),
        ("x", None),
    ],
)
def test_a_model_has_experts_or_not_where_its_capture_says_so(model: object, has: bool | None) -> None:
    assert has_experts(replace(dump(EXACT, None), facts={"model": model})) is has
