"""Rows: one a pair, in order, whatever is wrong with it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import tensordiff
from tensordiff.align import align
from tensordiff.compare.comparer import Comparer, ThirdDump
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.dispatch import measure
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.compare.row import Row
from tensordiff.dump import Dump
from tensordiff.dump.dtypes import Array
from tests.making import held, nudged, numbers, pairs

Tensors = dict[str, Array | None]
A = numbers(16, 16, dtype="float64").astype(np.float32)


def rows(reference: Tensors, candidate: Tensors, limits: Limits | None = None) -> list[Row]:
    return list(Comparer(limits or Limits()).rows(pairs(reference, candidate)))


def verdicts(reference: Tensors, candidate: Tensors) -> list[str]:
    return [row.verdict.name for row in rows(reference, candidate)]


def with_third(reference: Tensors, candidate: Tensors, **thirds: Tensors) -> list[Row]:
    ref = held(reference)
    comparer = Comparer(**{name: ThirdDump.of(align(ref, held(third))) for name, third in thirds.items()})  # type: ignore[arg-type]
    return list(comparer.rows(align(ref, held(candidate)).pairs))


def test_a_row_has_all_there_is_to_know() -> None:
    [row] = rows({"a-output": A[None]}, {"a-output": A.astype(np.float64)})
    assert (row.dtypes, row.shape, row.views) == (("float32", "float64"), (16, 16), ("squeeze 0",))
    assert row.diff is not None
    assert (row.diff.elements, row.diff.max_abs, row.verdict.name) == (256, 0.0, "agrees")
    assert (row.injected, row.golden_ratio, row.is_input) == (None, None, False)


def test_rows_come_one_by_one() -> None:
    made = Comparer().rows(pairs({"a": A, "b": None}, {"a": A, "b": A}))
    assert next(made).verdict.name == "agrees"
    assert next(made).verdict.name == "unknown"
    with pytest.raises(StopIteration):
        next(made)


@pytest.mark.parametrize("side", [0, 1])
def test_what_cannot_be_read_is_unknown_with_the_reason_and_the_rest_goes_on(side: int) -> None:
    whole: Tensors = {"a": A, "b": A}
    broken: Tensors = {"a": None, "b": A}
    first, second = rows(broken, whole) if side == 0 else rows(whole, broken)
    assert (first.diff, first.shape, first.dtypes) == (None, None, None)
    assert first.verdict == ("unknown", "lost.pt: is truncated; dump it again")
    assert second.verdict.name == "agrees"


def test_shapes_that_no_view_reconciles_are_unknown() -> None:
    [row] = rows({"a": numbers(2, 3)}, {"a": numbers(3, 2)})
    assert (row.diff, row.shape, row.dtypes) == (None, None, ("float32", "float32"))
    way_out = "add a [[view]] rule, e.g. candidate = 'transpose 0 1'"
    assert row.verdict == ("unknown", f"shapes [2, 3] and [3, 2] differ; {way_out}")


@pytest.mark.parametrize(
    ("shapes", "view"),
    [(((2, 3, 4), (2, 4, 3)), "transpose 1 2"), (((2, 3), (3, 2)), "transpose 0 1"), (((4, 6), (3, 8)), "reshape 4 6")],
)
def test_the_view_that_is_proposed_makes_one_shape_of_the_other(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], view: str, tmp_path: Path
) -> None:
    ours, theirs = ({"a": numbers(*shape), "b": numbers(3)} for shape in shapes)
    assert tensordiff.compare(ours, theirs).row("a").why.endswith(f"e.g. candidate = '{view}'")
    (tmp_path / "r.toml").write_text(f"[[view]]\nmatch = '^a$'\ncandidate = '{view}'\n")
    assert tensordiff.compare(ours, theirs, rules=tmp_path / "r.toml").row("a").shape == shapes[0]


def test_another_number_of_tokens_is_asked_about() -> None:
    [row] = rows({"a": numbers(1, 9, 8)}, {"a": numbers(1, 7, 8)})
    assert row.verdict.why.startswith("shapes [1, 9, 8] and [1, 7, 8] differ; were both given the same input?")


def test_scalars_and_empty_tensors_are_measured() -> None:
    odd: Tensors = {"a": np.empty(0, np.float32), "b": np.array(3.0), "c": np.empty((2, 0, 3))}
    assert verdicts(odd, odd) == ["agrees"] * 3


def test_numbers_are_those_of_the_view() -> None:
    wrong = A.copy()
    wrong[3, 5] += 1
    [row] = rows({"a": A[None]}, {"a": wrong})
    assert row.diff is not None
    assert row.diff.max_abs_index == (3, 5)


def test_the_tolerance_reaches_the_count() -> None:
    [row] = rows({"a": np.zeros(4)}, {"a": np.arange(4.0)}, Limits(Tolerance(atol=1.5)))
    assert row.diff is not None
    assert row.diff.outside == 2


# --- what came in -------------------------------------------------------------------------------


def test_the_inputs_of_a_layer_are_what_came_in() -> None:
    dirty = nudged(A, 0.1)
    reference: Tensors = {"a-input_0": A, "a-output": A, "b-input_0": A, "b-output": A}
    assert verdicts(reference, reference | {"a-output": dirty}) == ["agrees", "diverges", "agrees", "agrees"]
    assert verdicts(reference, reference | {"b-input_0": dirty, "b-output": dirty})[3] == "drifts"


def test_the_worst_of_several_inputs_counts() -> None:
    reference: Tensors = {"a-input_0": A, "a-input_1": A, "a-output": A}
    candidate = reference | {"a-input_0": nudged(A, 0.1), "a-output": nudged(A, 0.2)}
    assert verdicts(reference, candidate)[2] == "drifts"


@pytest.mark.parametrize("which", ["a-input_0", "a-input_1"])
def test_a_nan_in_any_input_counts(which: str) -> None:
    odd = A.copy()
    odd[0, 0] = math.nan
    reference: Tensors = {"a-input_0": A, "a-input_1": A, "a-output": A}
    assert verdicts(reference, reference | {which: odd, "a-output": odd})[2] == "drifts"
    assert verdicts(reference, reference | {which: odd, "a-output": nudged(A, 0.5)})[2] == "drifts"


def test_without_inputs_what_ran_before_is_what_came_in() -> None:
    reference: Tensors = {"a": A, "b": A, "c": A}
    candidate: Tensors = {"a": A, "b": nudged(A, 0.1), "c": nudged(A, 0.2)}
    assert verdicts(reference, candidate) == ["agrees", "diverges", "drifts"]


def test_ids_and_masks_carry_nothing() -> None:
    reference: Tensors = {"a": nudged(A, 0.0), "ids": np.arange(4), "b": A}
    candidate: Tensors = {"a": nudged(A, 0.1), "ids": np.arange(4), "b": nudged(A, 0.1)}
    assert verdicts(reference, candidate) == ["diverges", "agrees", "drifts"]


def test_what_is_unknown_carries_nothing() -> None:
    reference: Tensors = {"a": A, "b": None, "c": A}
    candidate: Tensors = {"a": nudged(A, 0.1), "b": A, "c": nudged(A, 0.1)}
    assert verdicts(reference, candidate) == ["diverges", "unknown", "drifts"]


def test_calls_have_inputs_of_their_own() -> None:
    reference: Tensors = {"a-input_0": A, "a-output": A, "a(2)-input_0": A, "a(2)-output": A}
    dirty = nudged(A, 0.1)
    candidate = reference | {"a-input_0": dirty, "a-output": dirty, "a(2)-output": dirty}
    assert verdicts(reference, candidate) == ["diverges", "drifts", "agrees", "diverges"]


# --- injected and golden ------------------------------------------------------------------------


def test_wrong_even_with_right_inputs_is_a_culprit() -> None:
    [row] = with_third({"a": A}, {"a": nudged(A, 0.1)}, injected={"a": nudged(A, 0.05)})
    assert row.verdict == ("diverges", "rel_l2 5.0e-02 even when given the reference's inputs")
    assert row.injected is not None
    assert row.injected.rel_l2 == pytest.approx(0.05, rel=1e-4)


def test_right_with_right_inputs_is_a_victim() -> None:
    [row] = with_third({"a": A}, {"a": nudged(A, 0.1)}, injected={"a": A})
    assert row.verdict == ("drifts", "rel_l2 1.0e-01, but 0.0e+00 when given the reference's inputs")


def test_in_between_the_verdict_stands() -> None:
    [row] = with_third({"a": A}, {"a": nudged(A, 0.1)}, injected={"a": nudged(A, 1e-4)})
    assert row.verdict.name == "diverges"


def test_nan_even_with_right_inputs_is_a_culprit() -> None:
    odd = A.copy()
    odd[0, 0] = math.nan
    [before, row] = with_third({"x": A, "a": A}, {"x": odd, "a": odd}, injected={"a": odd})
    assert (before.verdict.name, row.verdict.name) == ("diverges", "diverges")
    assert row.verdict.why.endswith("even when given the reference's inputs")


def test_what_agrees_is_left_alone() -> None:
    [row] = with_third({"a": A}, {"a": A}, injected={"a": nudged(A, 0.5)})
    assert row.verdict.name == "agrees"


def test_an_injected_run_in_another_shape() -> None:
    [row] = with_third({"a": A[None]}, {"a": A}, injected={"a": A[:, None]})
    assert row.injected is not None
    assert row.injected.max_abs == 0
    [row] = with_third({"a": A}, {"a": A}, injected={"a": A[:8]})
    assert row.injected is None


@pytest.mark.parametrize("third", ["injected", "golden"])
def test_a_third_run_that_cannot_be_read_is_not_passed_over(third: str) -> None:
    first, second = with_third({"a": A, "b": A}, {"a": A, "b": A}, **{third: {"a": None, "b": A}})
    assert first.verdict == ("unknown", "lost.pt: is truncated; dump it again")
    assert second.verdict.name == "agrees"


def test_an_injected_run_may_hold_less() -> None:
    found = with_third({"a": A, "b": A}, {"a": A, "b": A}, injected={"b": A})
    assert [row.injected is None for row in found] == [True, False]


def test_golden_ratio_is_one_error_over_the_other() -> None:
    exact = numbers(64, 64, dtype="float64")
    [row] = with_third({"a": nudged(exact, 1e-3)}, {"a": nudged(exact, 5e-3, seed=2)}, golden={"a": exact[None]})
    assert row.golden_ratio == pytest.approx(5, rel=1e-6)


@pytest.mark.parametrize("golden", [A, A.reshape(8, 32), None])
def test_golden_ratio_is_unknown_where_the_reference_is_exact_or_shapes_differ(golden: Array | None) -> None:
    third: Tensors = {"b": A} if golden is None else {"a": golden, "b": A}
    found = with_third({"a": A, "b": A}, {"a": nudged(A, 0.1), "b": A}, golden=third)
    assert found[0].golden_ratio is None


def test_the_engine_measures_whatever_pairs_it_is_given() -> None:
    dump: Dump = held({"a": A, "b": A})
    chosen = [pair for pair in align(dump, dump).pairs if pair.name == "b"]
    assert [row.pair.index for row in Comparer().rows(chosen)] == [1]


def test_numbers_do_not_depend_on_what_was_measured_before() -> None:
    """Nor on which pass is quicker: one pass measures all that a process is given."""
    tensors = {f"a{k}-output": numbers(300, 400, seed=k) for k in range(14)}
    wrong = {name: nudged(array, 1e-3) for name, array in tensors.items()}
    one, other = ([row.diff.as_json() for row in rows({**tensors}, {**wrong}) if row.diff] for _ in range(2))
    alone = [measure(array, wrong[name]).as_json() for name, array in reversed(tensors.items())]
    assert one == other == alone[::-1] and len(one) == 14
