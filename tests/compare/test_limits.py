"""Which tolerance is a pair's own, and what is said when it is broken."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensordiff.align.rules.tables import ToleranceRule
from tensordiff.compare.comparer import Comparer
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.dispatch import measure
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.compare.row import Row
from tensordiff.dump.dtypes import Array
from tensordiff.errors import AlignError
from tests.making import nudged, numbers, pairs

FIRST, SECOND = ToleranceRule(r"^layers\.0\.", rel_l2=1.0), ToleranceRule(r"mlp", atol=2.0)
TWO = Limits(threshold=0.5, rules=(FIRST, SECOND))


def row(rule: ToleranceRule, ref: Array, cand: Array, name: str = "layers.3.mlp") -> Row:
    [found] = Comparer(Limits(rules=(rule,))).rows(pairs({name: ref}, {name: cand}))
    return found


@pytest.mark.parametrize(
    ("name", "match"), [("layers.0.mlp", FIRST.match), ("layers.1.mlp", SECOND.match), ("layers.1.norm", None)]
)
def test_the_first_that_matches_counts(name: str, match: str | None) -> None:
    assert TWO.for_pair(name, "output").match == match


def test_what_none_matches_is_judged_by_what_was_said_for_all() -> None:
    assert TWO.for_pair("norm", "output") == Limits(threshold=0.5)
    assert not Limits(rules=(FIRST,)).for_pair("norm", "output").are_set


def test_without_tables_nothing_is_looked_up() -> None:
    limits = Limits(threshold=0.5)
    assert limits.for_pair("a", "output") is limits
    assert "_find" not in vars(limits)


@pytest.mark.parametrize(
    ("match", "port", "is_matched"),
    [
        ("mlp$", "output", True),
        ("mlp$", "input_0", True),
        ("mlp-output$", "output", True),
        ("mlp-output$", "output_0", True),
        ("mlp-output$", "output_1", False),
        ("mlp-output$", "input_0", False),
        ("-input", "input_hidden_states", True),
    ],
)
def test_a_port_may_be_named(match: str, port: str, is_matched: bool) -> None:
    assert Limits(rules=(ToleranceRule(match, rel_l2=1.0),)).for_pair("layers.0.mlp", port).are_set == is_matched


@pytest.mark.parametrize(
    ("rule", "tolerance"),
    [
        (ToleranceRule("", atol=0.5), Tolerance(0.5, 0.0)),
        (ToleranceRule("", rtol=0.5), Tolerance(0.0, 0.5)),
        (ToleranceRule("", rtol=0.0), Tolerance(0.0, 0.0)),
        (ToleranceRule("", rel_l2=0.5), None),
    ],
)
def test_of_atol_and_rtol_a_missing_one_is_nothing(rule: ToleranceRule, tolerance: Tolerance | None) -> None:
    assert Limits(rules=(rule,)).for_pair("a", "output").tolerance == tolerance


def test_rtol_alone_does_not_always_pass() -> None:
    ref, cand = np.array([1.0, 5.0, 0.0]), np.array([1.0, 5.0, 3.0])
    found = row(ToleranceRule("mlp", rtol=1e6), ref, cand)
    assert found.verdict.name == "diverges"
    assert found.verdict.why == "1 element (33.3%) outside atol 0 + rtol 1e+06 (tolerance 'mlp')"
    assert found.diff is not None
    assert found.diff.outside == 1


def test_elements_are_counted_by_the_pair_s_own_atol_and_rtol() -> None:
    tensors = {name: np.zeros(4) for name in ("a", "b", "c")}, {name: np.arange(4.0) for name in ("a", "b", "c")}
    rules = ToleranceRule("a", atol=3.0), ToleranceRule("b", atol=1.5)
    rows = Comparer(Limits(Tolerance(atol=0.5), rules=rules)).rows(pairs(*tensors))
    counted = [(found.verdict.name, found.diff.outside) for found in rows if found.diff]
    assert counted == [("agrees", 0), ("diverges", 2), ("diverges", 3)]


REF = numbers(64, 64)
CAND = nudged(REF, 1e-2)
DIFF = measure(REF, CAND)


@pytest.mark.parametrize(
    ("metric", "value"),
    [("rel_l2", DIFF.rel_l2), ("max_abs", DIFF.max_abs), ("cos_dist", DIFF.cosine_distance), ("kl_div", None)],
)
def test_each_metric_is_enforced_by_itself(metric: str, value: float | None) -> None:
    if value is None:
        value = float(row(ToleranceRule("mlp", kl_div=0.0), REF, CAND).verdict.why.split()[1])
    assert row(ToleranceRule("mlp", **{metric: 1.001 * value}), REF, CAND).verdict.name == "agrees"
    found = row(ToleranceRule("mlp", **{metric: 0.99 * value}), REF, CAND).verdict
    assert found.name == "diverges"
    assert found.why == f"{metric} {value:.4g} is above {0.99 * value:g} (tolerance 'mlp')"


def test_a_tolerance_beats_floor_and_what_came_in_both_ways() -> None:
    rough = nudged(REF, 0.5)
    assert row(ToleranceRule("mlp", rel_l2=0.6), REF, rough).verdict == ("agrees", "within the tolerance 'mlp'")
    close = nudged(REF, 1e-7)
    assert row(ToleranceRule("mlp", rel_l2=1e-9), REF, close).verdict.name == "diverges"
    assert row(ToleranceRule("other", rel_l2=1e-9), REF, close).verdict.name == "agrees"


@pytest.mark.parametrize("odd", [math.nan, math.inf])
@pytest.mark.parametrize("metric", ["rel_l2", "max_abs", "cos_dist", "kl_div", "atol"])
def test_nan_passes_no_tolerance(metric: str, odd: float) -> None:
    bad = REF.copy()
    bad[1, 2] = odd
    wide = ToleranceRule("mlp", **{metric: 1.9 if metric == "cos_dist" else 1e30})
    assert row(wide, REF, bad).verdict.name == "diverges"


def test_a_limit_of_kl_div_alone_speaks_of_outputs_alone() -> None:
    tensors = {"head-input_0": REF, "head": REF}
    rows = list(Comparer(Limits(rules=(ToleranceRule("head", kl_div=1.0),))).rows(pairs(tensors, tensors)))
    assert [found.verdict.why for found in rows] == ["equal", "within the tolerance 'head'"]


@pytest.mark.parametrize("shape", [(), (4, 1)])
def test_where_kl_div_can_tell_nothing_it_lets_nothing_pass(shape: tuple[int, ...]) -> None:
    one = np.ones(shape, np.float32)
    found = row(ToleranceRule("mlp", kl_div=1.0), one, one + 9)
    assert found.verdict == ("unknown", f"kl_div is of distributions, and shape {list(shape)} holds none")


def test_the_name_of_a_tolerance_is_printed_safely() -> None:
    found = row(ToleranceRule("mlp|\x1b", rel_l2=0.0), REF, CAND).verdict.why
    assert found.isprintable()


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, True, "1"])
@pytest.mark.parametrize(
    ("kind", "name"),
    [(ToleranceRule, name) for name in ("rel_l2", "atol", "rtol", "max_abs", "cos_dist", "kl_div")]
    + [(Limits, name) for name in ("threshold", "max_abs", "cos_dist", "kl_div")]
    + [(Tolerance, name) for name in ("atol", "rtol")],
)
def test_an_amount_that_is_no_tolerance_is_refused_wherever_it_comes_from(kind: Any, name: str, value: object) -> None:
    match = {"match": "a"} if kind is ToleranceRule else {}
    assert kind(**match, **{name: 0})
    with pytest.raises(AlignError, match=f"^{name} is .*; it is a number, 0 or more and finite$"):
        kind(**match, **{name: value})


@pytest.mark.parametrize(
    "made",
    [
        lambda: Limits(threshold=1e308), lambda: Limits(cos_dist=2.0), lambda: Limits(max_abs=1e39),
        lambda: Limits(Tolerance(rtol=1e300)), lambda: Limits(Tolerance(atol=1e300)), lambda: Limits(kl_div=1e300),
        lambda: ToleranceRule("a", rel_l2=1e308), lambda: ToleranceRule("a", atol=3.5e38),
    ],
)  # fmt: skip
def test_a_limit_that_no_tensor_could_fail_is_refused(made: Callable[[], object]) -> None:
    with pytest.raises(AlignError, match="which every tensor would pass"):
        made()


@pytest.mark.parametrize("made", [Limits(threshold=100.0), Limits(max_abs=1e30), Limits(kl_div=20.0)])
def test_a_wide_limit_is_the_user_s_to_give(made: Limits) -> None:
    assert made.are_set
