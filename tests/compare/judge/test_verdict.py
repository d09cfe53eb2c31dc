"""The table of verdicts: what the error is, what came in, what the user said."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from tensordiff.compare.judge.verdict import FLOORS, GROWTH, Verdict, floor_for, judge_diff
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.measure.dispatch import measure
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.dump.dtypes import Array
from tests.making import nudged, numbers

REFERENCE = numbers(64, 64, dtype="float64")
F32 = ("float32", "float32")
ANYTHING = Limits()


def diff(rel_l2: float) -> Diff:
    """The numbers of a pair with this error."""
    return measure(REFERENCE, nudged(REFERENCE, rel_l2))


def verdict(rel_l2: float, carried: float | None = None, dtypes: tuple[str, str] = F32) -> Verdict:
    return judge_diff(diff(rel_l2), dtypes, carried, ANYTHING)


@pytest.mark.parametrize(
    ("dtypes", "floor"),
    [
        (("float32", "float32"), "float32"),
        (("float64", "float32"), "float32"),
        (("float32", "bfloat16"), "bfloat16"),
        (("float16", "bfloat16"), "bfloat16"),
        (("float16", "float64"), "float16"),
        (("float8_e4m3fn", "bfloat16"), "float8"),
        (("float8_e5m2", "float8_e5m2"), "float8"),
        (("int64", "int32"), "exact"),
        (("bool", "uint8"), "exact"),
        (("complex64", "complex64"), "float32"),
    ],
)
def test_the_coarser_type_decides(dtypes: tuple[str, str], floor: str) -> None:
    assert floor_for(*dtypes) == floor_for(*dtypes[::-1]) == (floor, FLOORS[floor])


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "bfloat16", "float8"])
@pytest.mark.parametrize(
    ("bound", "factor", "name"),
    [("agrees", 0.9, "agrees"), ("agrees", 1.1, "drifts"), ("diverges", 0.9, "drifts"), ("diverges", 1.1, "diverges")],
)
def test_with_nothing_known_of_what_came_in(kind: str, bound: str, factor: float, name: str) -> None:
    assert verdict(factor * getattr(FLOORS[kind], bound), None, (kind, kind)).name == name


@pytest.mark.parametrize(
    ("error", "carried", "name"),
    [
        (1e-6, 1e-1, "agrees"),  # rounding, whatever came in
        (1e-1, 1e-7, "diverges"),  # clean in, dirty out
        (1e-4, 1e-7, "drifts"),  # above rounding, yet no more than a healthy layer may do
        (1e-1, 1e-1, "drifts"),  # as dirty as it came
        (1e-1, 0.9 * 1e-1 / GROWTH, "diverges"),  # far dirtier than it came
        (1e-1, 1.1 * 1e-1 / GROWTH, "drifts"),
        (1e-4, 2e-5, "drifts"),
        (9e-4, 2e-5, "diverges"),  # below the ceiling, but what came in does not explain it
        (1e-1, math.inf, "drifts"),
        (1e-1, math.nan, "drifts"),
        (1e-1, 0.0, "diverges"),
    ],
)
def test_what_came_in_counts(error: float, carried: float, name: str) -> None:
    assert verdict(error, carried).name == name


@pytest.mark.parametrize(("carried", "name"), [(2.4e-2, "diverges"), (2.8e-2, "drifts"), (3.1e-2, "drifts")])
def test_what_a_layer_may_multiply_does_not_fall_where_its_input_still_agrees(carried: float, name: str) -> None:
    assert verdict(1.1e-1, carried, ("bfloat16", "bfloat16")).name == name


def test_the_reason_names_both_numbers() -> None:
    assert verdict(1e-1, 1e-7).why == "rel_l2 1.0e-01, though its input agrees (1.0e-07)"
    assert verdict(1e-1, 1e-4).why == "rel_l2 1.0e-01 is 1000 times the error of its input (1.0e-04)"
    assert verdict(1e-1, 1e-1).why == "rel_l2 1.0e-01, because its input already differs (1.0e-01)"
    assert verdict(1e-6).why == "rel_l2 1.0e-06 is rounding (float32)"
    assert verdict(0.0).why == "equal"


def test_nothing_agrees_with_nothing() -> None:
    empty = np.empty((0, 4), np.float32)
    assert judge_diff(measure(empty, empty), F32, None, Limits(threshold=0.0)) == Verdict("agrees", "both are empty")


def test_integers_must_be_equal() -> None:
    ids = np.arange(9)
    assert judge_diff(measure(ids, ids), ("int64", "int64"), None, ANYTHING).name == "agrees"
    other = ids.copy()
    other[3:5] += 1
    found = judge_diff(measure(ids, other), ("int64", "int64"), 1.0, ANYTHING)
    assert found == Verdict("diverges", "2 of 9 integers differ")


def with_odd(**places: float) -> Array:
    array = numbers(8)
    for place, value in places.items():
        array[int(place[1:])] = value
    return array


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("reference", "candidate", "why"),
    [
        (with_odd(), with_odd(_1=NAN, _2=NAN), "NaN in 2 places of the candidate, in 0 of the reference"),
        (with_odd(_1=NAN), with_odd(), "NaN in 0 places of the candidate, in 1 of the reference"),
        (with_odd(), with_odd(_1=INF), "infinite in 1 places of the candidate, in 0 of the reference"),
        (with_odd(_1=NAN), with_odd(_2=NAN), "NaN or infinite in other places (2 elements)"),
        (with_odd(_1=INF), with_odd(_1=-INF), "NaN or infinite in other places (1 elements)"),
    ],
)
def test_odd_values_that_stand_apart_diverge(reference: Array, candidate: Array, why: str) -> None:
    assert judge_diff(measure(reference, candidate), F32, 1e-7, ANYTHING) == Verdict("diverges", why)


@pytest.mark.parametrize("odd", [NAN, INF, -INF])
def test_odd_values_in_the_same_place_agree(odd: float) -> None:
    array = with_odd(_1=odd)
    assert judge_diff(measure(array, array.copy()), F32, None, ANYTHING).name == "agrees"


@pytest.mark.parametrize("carried", [NAN, INF])
def test_a_nan_spreads_and_is_not_the_fault_of_whom_it_reaches(carried: float) -> None:
    apart = measure(with_odd(), with_odd(_1=NAN))
    assert judge_diff(apart, F32, carried, ANYTHING).name == "drifts"
    assert judge_diff(apart, F32, carried, Limits(threshold=1.0)).name == "diverges"


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (Limits(threshold=0.11), "agrees"),
        (Limits(threshold=0.09), "diverges"),
        (Limits(threshold=0.0), "diverges"),
        (Limits(threshold=1e9), "agrees"),
        (Limits(tolerance=Tolerance(atol=1.0)), "agrees"),
        (Limits(tolerance=Tolerance(atol=1e-3)), "diverges"),
        (Limits(tolerance=Tolerance(atol=1.0), threshold=0.09), "diverges"),
        (Limits(tolerance=Tolerance(atol=1e-3), threshold=0.11), "diverges"),
        (Limits(tolerance=Tolerance(atol=1.0), threshold=0.11), "agrees"),
    ],
)
def test_the_user_s_word_beats_floor_and_what_came_in(limits: Limits, name: str) -> None:
    found = measure(REFERENCE, nudged(REFERENCE, 0.1), limits.tolerance)
    for carried in (None, 0.0, 1.0):
        assert judge_diff(found, F32, carried, limits).name == name


def test_an_error_against_a_reference_of_nothing_is_infinite() -> None:
    found = measure(np.zeros(4, np.float32), np.full(4, 1e-20, np.float32))
    assert found.rel_l2 == math.inf
    assert judge_diff(found, F32, None, ANYTHING).name == "diverges"


def test_rounding_to_a_coarser_type_agrees() -> None:
    array = numbers(256, 256)
    rounded = array.astype(ml_dtypes.bfloat16)
    assert judge_diff(measure(array, rounded), ("float32", "bfloat16"), 0.0, ANYTHING).name == "agrees"
    assert judge_diff(measure(array, rounded.astype(np.float32)), F32, 0.0, ANYTHING).name == "diverges"
