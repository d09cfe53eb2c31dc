"""What would pass: never too little for what it was measured on, and no more than the margin too much."""

from __future__ import annotations

import math
import re
import sys
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordiff.compare.comparer import Comparer
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.dispatch import measure
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.compare.row import Row
from tensordiff.compare.tolerances import (
    RTOLS,
    Need,
    least_atols,
    match_for,
    need_of,
    pareto_front,
    round_up,
    tolerance_for,
)
from tensordiff.dump.dtypes import Array
from tensordiff.errors import AlignError
from tests.making import nudged, numbers, pairs

SIZES = st.floats(1e-300, 1e300)
MARGINS = st.sampled_from([0.0, 0.1, 0.25, 1.0])


def row(ref: Array, cand: Array, name: str = "layers.3.mlp") -> Row:
    [found] = Comparer().rows(pairs({name: ref}, {name: cand}))
    return found


def need(ref: Array, cand: Array, margin: float = 0.0, name: str = "layers.3.mlp") -> Need:
    found = need_of(row(ref, cand, name), margin)
    assert found is not None
    return found


@given(SIZES, MARGINS)
def test_rounding_goes_up_and_not_far(value: float, margin: float) -> None:
    found = round_up(value, margin)
    assert found >= value
    assert value * (1 + margin) * (1 - 1e-15) <= found <= value * (1 + margin) * 1.1 * (1 + 1e-15)
    assert float(f"{found:.1e}") == found


@pytest.mark.parametrize(
    ("value", "margin", "expected"),
    [
        (0.0, 0.25, 0.0),
        (0.1, 0.0, 0.1),
        (0.1, 0.25, 0.13),
        (1.0000001e-7, 0.0, 1.1e-7),
        (9.91e-5, 0.0, 1e-4),
        (5e-324, 0.0, 5e-324),
        (1.7e308, 0.25, sys.float_info.max),
        (2.9e-2, 0.0, 2.9e-2),
    ],
)
def test_two_digits(value: float, margin: float, expected: float) -> None:
    assert round_up(value, margin) == expected


TYPES = ("float32", "float16", "float64", ml_dtypes.bfloat16)


@given(st.integers(0, 10**6), st.sampled_from(TYPES), st.sampled_from([1e-7, 1e-3, 1.0]), MARGINS)
@settings(max_examples=60, deadline=None)
def test_every_point_of_the_front_passes_and_none_is_idle(seed: int, dtype: str, error: float, margin: float) -> None:
    wide = numbers(40, seed=seed, dtype="float64") * 10.0 ** (seed % 5 - 2)
    ref, cand = wide.astype(dtype), nudged(wide, error, seed=seed + 1).astype(dtype)
    points = pareto_front(least_atols(ref, cand, margin))
    for point in points:
        assert measure(ref, cand, point).outside == 0
    for one, other in pairwise(points):
        assert other.atol < one.atol
        assert other.rtol > one.rtol


@given(st.integers(0, 10**6), st.sampled_from(TYPES))
@settings(max_examples=60, deadline=None)
def test_the_least_atol_is_the_least(seed: int, dtype: str) -> None:
    wide = numbers(40, seed=seed, dtype="float64")
    ref, cand = wide.astype(dtype), nudged(wide, 1e-2, seed=seed + 1).astype(dtype)
    for rtol, atol in zip(RTOLS, least_atols(ref, cand), strict=True):
        assert measure(ref, cand, Tolerance(atol, rtol)).outside == 0
        if atol > 0:
            assert measure(ref, cand, Tolerance(atol * (1 - 1e-9) - 1e-15, rtol)).outside > 0


def test_rounding_of_the_subtraction_lets_no_element_slip_out() -> None:
    ref, cand = np.array([10.0]), np.array([2.0**53 + 12])  # 2^53 + 2 apart, and 0.1 * 10 is half a step of that
    for rtol, atol in zip(RTOLS, least_atols(ref, cand), strict=True):
        assert measure(ref, cand, Tolerance(atol, rtol)).outside == 0


def test_the_front_begins_at_the_largest_error_and_ends_where_rtol_is_enough() -> None:
    ref, cand = np.array([1.0, 10.0]), np.array([1.0, 10.05])
    points = pareto_front(least_atols(ref, cand))
    assert points[0] == Tolerance(round_up(cand[1] - 10.0), 0.0)
    assert points[-1] == Tolerance(0.0, 1e-2)


def test_a_margin_is_had_where_rtol_alone_decides() -> None:
    ref = np.array([1.0])
    cand = ref * 1.009
    assert pareto_front(least_atols(ref, cand))[-1] == Tolerance(0.0, 1e-2)
    assert pareto_front(least_atols(ref, cand, 0.25))[-1] == Tolerance(0.0, 3e-2)
    worse = ref + (cand - ref) * 1.25
    assert all(measure(ref, worse, point).outside == 0 for point in pareto_front(least_atols(ref, cand, 0.25)))


def test_the_same_infinities_need_nothing() -> None:
    mask = np.array([[0.0, -math.inf], [0.0, 0.0]])
    assert set(least_atols(mask, mask)) == {0.0}
    found = need(mask, mask)
    assert (found.rel_l2, found.max_abs) == (8 * 2.0**-53, 0)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_least_number_of_a_mask_makes_no_tolerance(dtype: str) -> None:
    mask = np.array([[0.0, np.finfo(dtype).min], [0.5, 0.0]], dtype)
    assert need(mask, mask).max_abs < 0.01


@pytest.mark.parametrize(("dtype", "unit"), [("float32", 2.0**-24), ("float16", 2.0**-11), ("float64", 2.0**-53)])
def test_runs_that_are_equal_today_may_differ_by_a_few_roundings_tomorrow(dtype: str, unit: float) -> None:
    ref = numbers(6, 40, dtype=dtype)
    found = need(ref, ref)
    largest = float(np.abs(ref).max())
    assert (found.pairs, found.rel_l2) == (1, 8 * unit)
    assert found.max_abs == pytest.approx(8 * unit * largest)
    next_up = np.nextafter(ref, np.array(np.inf, ref.dtype))
    [row] = Comparer(Limits(rules=(tolerance_for("a", found, 0.0),))).rows(pairs({"a": ref}, {"a": next_up}))
    assert row.verdict.name == "agrees"


@given(st.integers(0, 10**6), MARGINS, st.sampled_from([1e-5, 1e-4, 1e-3]))
@settings(max_examples=30, deadline=None)
def test_what_is_learnt_passes_and_a_tenth_of_it_does_not(seed: int, margin: float, error: float) -> None:
    ref = numbers(6, 40, seed=seed)
    cand = nudged(ref, error, seed=seed + 1)
    name = "model.lm_head"
    pair = pairs({name: ref}, {name: cand})
    learnt = tolerance_for("lm_head", need(ref, cand, margin, name), margin)
    assert learnt.kl_div is not None
    [found] = Comparer(Limits(rules=(learnt,))).rows(pair)
    assert found.verdict.name == "agrees"
    limits = {key: getattr(learnt, key) for key in ("rel_l2", "max_abs", "cos_dist", "kl_div")}
    for key, limit in limits.items():
        tight = type(learnt)("lm_head", **{key: limit / 10})
        if limit:
            assert [r.verdict.name for r in Comparer(Limits(rules=(tight,))).rows(pair)] == ["diverges"]


def test_logits_alone_have_a_divergence() -> None:
    ref, cand = numbers(6, 40), nudged(numbers(6, 40), 1e-5)
    assert need(ref, cand).kl_div is None
    assert need(ref, cand, name="lm_head").kl_div is not None


def test_several_pairs_need_what_the_worst_needs() -> None:
    ref = numbers(6, 40)
    one, other = need(ref, nudged(ref, 1e-5)), need(10 * ref, nudged(10 * ref, 1e-6))
    both = one | other
    assert both.pairs == 2
    assert both.rel_l2 == one.rel_l2
    assert both.max_abs == max(one.max_abs, other.max_abs)
    assert both.kl_div is None
    assert both.atols == tuple(map(max, one.atols, other.atols))
    logits = need(ref, nudged(ref, 1e-5), name="lm_head")
    assert (logits | one).kl_div == (one | logits).kl_div == logits.kl_div


def test_what_must_be_equal_needs_no_tolerance() -> None:
    ids = np.arange(9)
    assert need_of(row(ids, ids), 0.25) is None
    empty = np.empty((0, 4), np.float32)
    assert need_of(row(empty, empty), 0.25) is None


@pytest.mark.parametrize("side", [0, 1])
def test_nan_is_refused_even_where_both_have_it(side: int) -> None:
    bad = numbers(8)
    bad[3] = math.nan
    with pytest.raises(AlignError, match=r"layers\.3\.mlp = layers\.3\.mlp: holds NaN"):
        need_of(row(bad, bad), 0.25)
    ref, cand = (bad, numbers(8)) if side == 0 else (numbers(8), bad)
    with pytest.raises(AlignError, match="holds NaN"):
        need_of(row(ref, cand), 0.25)


def test_an_infinite_error_is_refused() -> None:
    with pytest.raises(AlignError, match="its error is inf"):
        need_of(row(np.zeros(4, np.float32), np.ones(4, np.float32)), 0.25)


@pytest.mark.parametrize(
    ("name", "general", "own"),
    [
        ("layers.3.mlp", r"^layers\.\d+\.mlp-output$", r"^layers\.3\.mlp-output$"),
        ("lm_head", "^lm_head-output$", "^lm_head-output$"),
        ("a.0.experts.12.fc1", r"^a\.\d+\.experts\.\d+\.fc1-output$", r"^a\.0\.experts\.12\.fc1-output$"),
        ("layers.3.mlp-input_0", r"^layers\.\d+\.mlp-input_0$", r"^layers\.3\.mlp-input_0$"),
        ("layers.3.mlp-output_0", r"^layers\.\d+\.mlp-output$", r"^layers\.3\.mlp-output$"),
        ("a[0].b+c", r"^a\[0\]\.b\+c-output$", r"^a\[0\]\.b\+c-output$"),
    ],
)
def test_groups(name: str, general: str, own: str) -> None:
    found = row(numbers(4), numbers(4), name)
    assert match_for(found, per_layer=False) == general
    assert match_for(found, per_layer=True) == own


@given(st.text(min_size=1, max_size=12).filter(lambda text: text.strip() == text))
@settings(max_examples=100, deadline=None)
def test_a_group_matches_its_pair_whatever_it_is_called(name: str) -> None:
    found = row(numbers(4), nudged(numbers(4), 1e-7), name)
    for per_layer in (False, True):
        learnt = tolerance_for(match_for(found, per_layer=per_layer), need(numbers(4), numbers(4)), 0.0)
        assert re.compile(learnt.match)
        assert Limits(rules=(learnt,)).for_pair(found.pair.name, found.pair.reference.port).match == learnt.match
