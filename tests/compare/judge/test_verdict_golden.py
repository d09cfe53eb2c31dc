"""Verdicts by the ratio to a golden run: guarded where the reference is exact, silent where it says nothing."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from tensordiff.compare.judge.verdict import GoldenErrors, exact_below, judge_by_golden
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.compare.test_comparer import with_third
from tests.making import SAMPLES, nudged, numbers

F32, BF16 = ("float32", "float32"), ("bfloat16", "bfloat16")
EXACT = numbers(64, 64, dtype="float64")


def verdict(reference: float, candidate: float, carried: float | None = None) -> str:
    golden = GoldenErrors(reference, candidate)
    ratio = golden.guarded(F32)
    assert ratio is not None
    return judge_by_golden(golden, ratio, carried).name


@pytest.mark.parametrize(
    ("reference", "candidate", "carried", "name"),
    [
        (1e-6, 1.9e-6, None, "agrees"),
        (1e-6, 1.9e-6, 1.0, "agrees"),
        (1e-6, 8e-6, None, "drifts"),
        (1e-6, 2e-5, None, "diverges"),
        (1e-6, 2e-5, 1.0, "diverges"),
        (1e-6, 2e-5, 15.0, "drifts"),  # as far as what came in
        (1e-6, 2e-5, math.nan, "drifts"),
        (0.0, 1e-7, None, "agrees"),  # the reference is exact, and this is a rounding or two
        (0.0, 1e-4, None, "diverges"),
        (0.0, math.inf, None, "diverges"),
    ],
)
def test_by_the_ratio(reference: float, candidate: float, carried: float | None, name: str) -> None:
    assert verdict(reference, candidate, carried) == name


def test_a_reference_is_exact_below_a_few_roundings() -> None:
    assert GoldenErrors(0.0, exact_below("float32")).guarded(F32) == 1.0
    assert GoldenErrors(0.0, exact_below("bfloat16")).guarded(BF16) == 1.0
    assert GoldenErrors(0.0, 1e-3).ratio is None


@pytest.mark.parametrize("dtypes", [("float32", "bfloat16"), ("int64", "int64"), ("float64", "float32")])
def test_nothing_is_said_where_the_candidate_is_further_off_by_right(dtypes: tuple[str, str]) -> None:
    assert GoldenErrors(1e-7, 1e-2).guarded(dtypes) is None


def test_a_reference_that_is_no_better_makes_a_coarse_candidate_agree() -> None:
    """Both are away from the golden by what bfloat16 explains, and so from each other; neither is the worse."""
    wide = EXACT.astype(np.float32)
    one, other = (nudged(wide, 0.1, seed=seed).astype(ml_dtypes.bfloat16) for seed in (1, 2))
    [row] = with_third({"a": one}, {"a": other}, golden={"a": wide})
    assert row.verdict.name == "agrees"
    assert row.verdict.why.startswith("as close to the golden run as the reference is: 1.0e-01 from the golden")


def test_a_golden_that_the_reference_is_nowhere_near_is_ignored() -> None:
    [row] = with_third({"a": nudged(EXACT, 0.05)}, {"a": nudged(EXACT, 0.05, seed=2)}, golden={"a": EXACT})
    assert row.verdict.name == "diverges"
    assert row.ignored_golden == pytest.approx(0.05)


def test_what_came_in_counts_in_ratios_too() -> None:
    golden = {"a-input_0": EXACT, "a-output": EXACT}
    reference = {name: nudged(EXACT, 1e-4) for name in golden}
    candidate = {name: nudged(EXACT, 1e-2, seed=2) for name in golden}
    [came, row] = with_third(dict(reference), dict(candidate), golden=dict(golden))
    assert (came.verdict.name, row.verdict.name) == ("diverges", "drifts")
    [came, row] = with_third(
        dict(reference), dict(candidate | {"a-input_0": reference["a-input_0"]}), golden=dict(golden)
    )
    assert (came.verdict.name, row.verdict.name) == ("agrees", "diverges")


@pytest.mark.parametrize(("candidate", "culprit"), [("candidate", "layers.1.mlp.act_fn"), ("max", None)])
def test_on_the_samples(candidate: str, culprit: str | None) -> None:
    session = Session.open(Request(SAMPLES / "reference", SAMPLES / candidate, golden=SAMPLES / "golden"))
    outcome = session.outcome(session.rows())
    found = outcome.culprit and outcome.culprit.pair.name
    assert found == culprit
    healthy = [
        row.golden_ratio for row in outcome.rows if row.golden_ratio is not None and row.verdict.name == "agrees"
    ]
    assert len(healthy) > 25
    assert max(healthy) < 3
