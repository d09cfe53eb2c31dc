"""What may excuse a pair that stands out, what is said of one that is not excused, and what is remembered."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from tensordiff.compare.comparer import Comparer
from tensordiff.compare.row import Row
from tensordiff.dump.dtypes import Array
from tests.making import nudged, numbers, pairs

Tensors = dict[str, Array | None]
A, B = numbers(16, 16), numbers(16, 16, seed=1)


def rows(reference: Tensors, candidate: Tensors) -> dict[str, Row]:
    return {row.pair.reference.name: row for row in Comparer().rows(pairs(reference, candidate))}


def low(array: Array) -> Array:
    return array.astype(ml_dtypes.bfloat16)


# --- amplification ---------------------------------------------------------------------------------


def test_amplification_is_the_error_over_what_came_in() -> None:
    reference: Tensors = {"a-input_0": A, "a-output": B}
    found = rows(reference, {"a-input_0": nudged(A, 1e-3), "a-output": nudged(B, 5e-3)})
    assert found["a-output"].amplification == pytest.approx(5, rel=1e-2)


@pytest.mark.parametrize("came_in", [A, np.full_like(A, math.nan)])
def test_nothing_is_known_of_it_where_no_error_or_a_nan_came_in(came_in: Array) -> None:
    found = rows({"a-input_0": A, "a-output": B}, {"a-input_0": came_in, "a-output": nudged(B, 1e-3)})
    assert found["a-output"].amplification is None
    assert rows({"a": A}, {"a": B})["a"].amplification is None


# --- how quiet the run has been ----------------------------------------------------------------------


def test_a_small_error_diverges_in_a_quiet_run() -> None:
    reference: Tensors = {"a": A, "b-input_0": A, "b-output": B}
    candidate: Tensors = {"a": nudged(A, 3e-7), "b-input_0": nudged(A, 3e-7), "b-output": nudged(B, 1e-4)}
    assert rows(reference, candidate)["b-output"].verdict.name == "diverges"
    del reference["a"], candidate["a"]
    assert rows(reference, candidate)["b-output"].verdict.name == "drifts"  # nothing says how quiet it is


def test_a_few_times_what_came_in_diverges_in_bfloat16() -> None:
    reference: Tensors = {"x": A, "a-input_0": A, "a-output": B}
    for error, verdict in ((3.5e-2, "drifts"), (6e-2, "diverges")):
        candidate: Tensors = {"x": nudged(A, 1e-2), "a-input_0": nudged(A, 1e-2), "a-output": nudged(B, error)}
        sides = [
            {name: low(array) for name, array in side.items() if array is not None} for side in (reference, candidate)
        ]
        assert rows(dict(sides[0]), dict(sides[1]))["a-output"].verdict.name == verdict


def test_garbage_in_says_nothing_of_what_comes_out() -> None:
    found = rows({"a-input_0": A, "a-output": B}, {"a-input_0": nudged(A, 0.9), "a-output": nudged(B, 40)})
    assert found["a-output"].verdict.name == "drifts"


# --- inputs that were not dumped --------------------------------------------------------------------


def test_without_inputs_anything_that_ran_before_may_have_come_in() -> None:
    reference: Tensors = {"q": A, "k": B, "o": A}
    found = rows(reference, {"q": nudged(A, 0.2), "k": nudged(B, 1e-7), "o": nudged(A, 0.2, seed=3)})
    assert [row.verdict.name for row in found.values()] == ["diverges", "agrees", "drifts"]


def test_what_stood_in_a_module_that_ended_has_gone_on_in_its_output() -> None:
    reference: Tensors = {"m.a": A, "m": B, "n": A}
    found = rows(reference, {"m.a": nudged(A, 0.2), "m": nudged(B, 1e-6), "n": nudged(A, 0.2, seed=3)})
    assert [row.verdict.name for row in found.values()] == ["diverges", "agrees", "diverges"]


def test_the_neighbour_is_named_where_inputs_were_not_dumped() -> None:
    found = rows({"a": A, "b": B}, {"a": A, "b": nudged(B, 0.2)})
    assert found["b"].verdict.why.endswith("its inputs were not compared, so the fault may lie between a and it")


# --- between parts ----------------------------------------------------------------------------------

BLOCK: Tensors = {
    "m.a-input_0": A, "m.a-output": B, "m.o-input_0": B, "m.o-output": A, "m-input_0": A, "m-output": A,
}  # fmt: skip


def test_glue_is_named_with_where_it_is_first_seen() -> None:
    wrong: Tensors = {name: nudged(A, 0.2) for name in ("m.o-input_0", "m.o-output", "m-output")}
    found = rows(BLOCK, BLOCK | wrong)
    assert found["m.o-output"].verdict.name == "drifts"
    why = found["m-output"].verdict.why
    assert "its parts are right by themselves, so what it does between them is wrong (residual, scale, reshape)" in why
    assert why.endswith("first seen in what o was given")


def test_a_module_around_a_culprit_is_not_called_glue() -> None:
    wrong: Tensors = {name: nudged(A, 0.2) for name in ("m.a-output", "m.o-input_0", "m.o-output", "m-output")}
    found = rows(BLOCK, BLOCK | wrong)
    assert found["m.a-output"].verdict.name == found["m-output"].verdict.name == "diverges"
    assert "between them" not in found["m-output"].verdict.why


# --- masks ------------------------------------------------------------------------------------------


def mask(hidden: float, dtype: str = "float32") -> Array:
    return np.where(np.tri(8, dtype=bool), 0.0, hidden).astype(dtype)


@pytest.mark.parametrize("other", [mask(-65504, "float16"), mask(-math.inf), mask(-1e9)])
def test_a_mask_in_other_numbers_is_the_same_and_carries_nothing(other: Array) -> None:
    shown: Tensors = {"a-input_mask": mask(float(np.finfo(np.float32).min)), "a-input_0": A, "a-output": B}
    found = rows(dict(shown), shown | {"a-input_mask": other, "a-output": nudged(B, 0.2)})
    assert found["a-input_mask"].verdict == ("agrees", "the same mask, in other numbers")
    assert found["a-output"].verdict.name == "diverges"


def test_a_mask_that_hides_something_else_is_another() -> None:
    shifted = np.roll(mask(-math.inf), 1, axis=1)
    assert rows({"a-input_mask": mask(-1e9)}, {"a-input_mask": shifted})["a-input_mask"].verdict.name == "diverges"


def test_large_numbers_are_no_mask() -> None:
    huge = A * np.float32(1e6)
    assert rows({"a-input_0": huge}, {"a-input_0": huge * 2})["a-input_0"].verdict.name == "diverges"


# --- what a type can hold, what cancels, what is uneven ----------------------------------------------


def test_what_float16_cannot_hold_is_said() -> None:
    large = A * np.float32(1e6)
    with np.errstate(over="ignore"):
        found = rows({"a": large}, {"a": large.astype(np.float16)})["a"]
    assert found.verdict.name == "diverges"
    assert "float16 cannot hold the reference" in found.verdict.why
    assert found.downcast == 0.0


def test_what_is_lost_by_the_cast_alone_is_nobody_s_fault() -> None:
    tiny = A * np.float32(2e-8)  # float16 has hardly a number there
    found = rows({"a": tiny}, {"a": tiny.astype(np.float16)})["a"]
    assert found.verdict.name == "drifts"
    assert "casting the reference to float16 alone costs" in found.verdict.why


def test_terms_that_cancel_are_no_fault_of_the_sum() -> None:
    """The stream is large, what is added nearly takes it away: the error stays, and is large of what is left."""
    stream, left = 100 * A.astype(np.float64), B.astype(np.float64)
    added = left - stream
    reference: Tensors = {"m.f-output": added, "m-input_0": stream, "m-output": left}
    moved = nudged(stream, 1e-7) - stream
    candidate: Tensors = {"m.f-output": added, "m-input_0": stream + moved, "m-output": left + moved}
    wide = {"x": stream} | reference, {"x": nudged(stream, 1e-7)} | candidate
    singles = [{name: np.asarray(array, np.float32) for name, array in side.items()} for side in wide]
    singles[1]["m-output"] = (left + 30 * moved).astype(np.float32)
    assert rows(dict(singles[0]), dict(singles[1]))["m-output"].verdict.name == "diverges"
    singles[1]["m-output"] = (left + 3 * moved).astype(np.float32)
    found = rows(dict(singles[0]), dict(singles[1]))["m-output"]
    assert found.verdict.name == "drifts"
    assert "large terms cancel here" in found.verdict.why


def test_a_norm_is_judged_by_what_its_small_tokens_brought() -> None:
    sizes = np.array([1000.0] + [1.0] * 15)[:, None]
    stream = A.astype(np.float64) * sizes
    moved = stream + nudged(A.astype(np.float64), 5e-5) - A
    reference: Tensors = {"x": B, "n-input_0": stream, "n-output": stream / sizes}
    candidate: Tensors = {"x": nudged(B, 1e-7), "n-input_0": moved, "n-output": moved / sizes}
    singles = [{name: np.asarray(array, np.float32) for name, array in side.items()} for side in (reference, candidate)]
    found = rows(dict(singles[0]), dict(singles[1]))["n-output"]
    assert found.verdict.name == "drifts"
    assert "if all tokens count equally" in found.verdict.why


def test_a_few_tokens_of_a_block_of_which_nothing_else_is_known() -> None:
    """They may have taken other experts; in float32, or with the block's parts dumped, that is not assumed."""
    wrong = nudged(A, 1e-3)
    wrong[3] = nudged(A[3], 0.5)
    for dtype, verdict in ((ml_dtypes.bfloat16, "drifts"), (np.float32, "diverges")):
        sides = [{"embed": A.astype(dtype), "layers.0": side.astype(dtype)} for side in (A, wrong)]
        assert rows(dict(sides[0]), dict(sides[1]))["layers.0"].verdict.name == verdict
    sides = [{"embed": low(A), "layers.0.f": low(A), "layers.0": low(side)} for side in (A, wrong)]
    assert rows(dict(sides[0]), dict(sides[1]))["layers.0"].verdict.name == "diverges"
