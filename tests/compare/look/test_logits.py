"""Logits beside each other, against an independent computation."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordiff.compare.look.logits import (
    K,
    LogitsDiff,
    combined,
    compare_logits,
    has_distributions,
    is_logits,
    kl_divergence,
)
from tensordiff.dump.dtypes import Array
from tests.making import nudged, numbers

NAN, INF = math.nan, math.inf
ROWS = st.integers(2, 12).flatmap(
    lambda n: st.tuples(*[st.lists(st.floats(-60, 60), min_size=n, max_size=n) for _ in range(2)])
)


def exact_kl(x: list[float], y: list[float]) -> Decimal:
    """KL of the softmax, in 60 digits and by the definition."""
    with localcontext() as context:
        context.prec = 60
        p, q = ([Decimal(value).exp() for value in side] for side in (x, y))
        total_p, total_q = sum(p), sum(q)
        return sum(((a / total_p) * ((a / total_p) / (b / total_q)).ln() for a, b in zip(p, q, strict=True)), Decimal())


def kl(x: list[float], y: list[float]) -> float:
    return float(kl_divergence(np.array([x]), np.array([y]))[0])


@given(ROWS)
@settings(max_examples=150, deadline=None)
def test_the_divergence_of_any_two(rows: tuple[list[float], list[float]]) -> None:
    assert kl(*rows) == pytest.approx(float(exact_kl(*rows)), rel=1e-9, abs=1e-12)


@given(
    st.lists(st.floats(-20, 20), min_size=2, max_size=12), st.sampled_from([1e-2, 1e-5, 1e-8]), st.integers(0, 99),
    st.floats(-5, 5),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_small_divergences_keep_their_digits(x: list[float], size: float, seed: int, shift: float) -> None:
    y = (np.array(x) + size * np.random.default_rng(seed).standard_normal(len(x))).tolist()
    expected = float(exact_kl(x, y))
    # What counts is how near the logits' difference is to a constant; it is known to 1e-15 of their size.
    assert kl(x, y) == pytest.approx(expected, rel=1e-5, abs=1e-28)
    moved = (np.array(y) + shift).tolist()
    assert kl(x, moved) == pytest.approx(float(exact_kl(x, moved)), rel=1e-3, abs=1e-28)


def test_what_rounding_leaves_is_not_taken_for_a_divergence() -> None:
    x = numbers(1, 50_000, dtype="float64") * 5
    assert kl_divergence(x, x)[0] == 0
    assert kl_divergence(x, x + 1024)[0] < 1e-25


@pytest.mark.parametrize("big", [1e3, 1e30, 1e300, 1.7e308])
def test_huge_logits_overflow_nothing(big: float) -> None:
    assert kl([big, 0.0, -big], [big, 0.0, -big]) == 0
    assert kl([big, 0.0], [0.0, big]) == pytest.approx(big)
    found = compare_logits(np.array([[big, 0.0, -big]]), np.array([[big, 0.0, -big]]))
    assert (found.kl_div, found.cosine_distance, found.top_1) == (0, 0, 1)


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ([NAN, 1.0], [0.0, 1.0], NAN),
        ([0.0, 1.0], [NAN, 1.0], NAN),
        ([NAN, 1.0], [NAN, 1.0], NAN),
        ([INF, 1.0], [INF, 1.0], NAN),
        ([0.0, 1.0], [INF, 1.0], NAN),
        ([-INF, -INF], [-INF, -INF], NAN),
        ([-INF, 1.0], [-INF, 9.0], 0.0),
        ([-INF, 1.0, 1.0], [-INF, 3.5, 3.5], 0.0),
        ([0.0, 0.0], [0.0, -INF], INF),
        ([0.0, -INF], [0.0, 0.0], math.log(2)),
    ],
)
def test_odd_logits(x: list[float], y: list[float], expected: float) -> None:
    assert kl(x, y) == pytest.approx(expected, nan_ok=True)


def test_one_bad_token_is_the_worst() -> None:
    ref = numbers(3, 40)
    cand = ref.copy()
    cand[1, 7] = NAN
    found = compare_logits(ref, cand)
    assert math.isnan(found.kl_div)
    assert math.isnan(found.kl_div_mean)
    assert math.isnan(found.cosine_distance)
    assert found.top_1 == found.top_k == pytest.approx(2 / 3)


def test_worst_and_mean_are_over_tokens() -> None:
    ref = numbers(2, 3, 40, dtype="float64")
    cand = nudged(ref, 0.1)
    tokens = [exact_kl(x.tolist(), y.tolist()) for x, y in zip(ref.reshape(-1, 40), cand.reshape(-1, 40), strict=True)]
    cosines = [
        1 - float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
        for x, y in zip(ref.reshape(-1, 40), cand.reshape(-1, 40), strict=True)
    ]
    found = compare_logits(ref, cand)
    assert (found.tokens, found.of) == (6, 6)
    assert found.kl_div == pytest.approx(float(max(tokens)))
    assert found.kl_div_mean == pytest.approx(float(sum(tokens)) / 6)
    assert found.cosine_distance == pytest.approx(max(cosines))
    assert found.cosine_distance_mean == pytest.approx(sum(cosines) / 6)


def test_it_is_the_candidate_s_divergence_from_the_reference() -> None:
    x, y = [0.0, 0.0], [0.0, 5.0]
    assert compare_logits(np.array([x]), np.array([y])).kl_div == pytest.approx(float(exact_kl(x, y)))
    assert exact_kl(x, y) != exact_kl(y, x)


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(2, 50))
@settings(max_examples=60, deadline=None)
def test_the_likeliest_tokens(seed: int, tokens: int, vocabulary: int) -> None:
    ref = numbers(tokens, vocabulary, seed=seed)
    cand = ref + numbers(tokens, vocabulary, seed=seed + 1) / 2
    k = min(K, vocabulary)
    chosen = [[set(np.argsort(-row)[:n].tolist()) for row in side] for side in (ref, cand) for n in (1, k)]
    found = compare_logits(ref, cand)
    assert found.k == k
    assert found.top_1 == pytest.approx(sum(a == b for a, b in zip(chosen[0], chosen[2], strict=True)) / tokens)
    both = sum(len(a & b) for a, b in zip(chosen[1], chosen[3], strict=True))
    assert found.top_k == pytest.approx(both / k / tokens)


def test_ties_at_the_edge_of_the_likeliest_agree() -> None:
    ref = np.zeros((1, 40))
    ref[0, :4] = 9.0
    cand = ref.copy()
    cand[0, 30] = 1e-9  # one of those that tie for the last place is a hair ahead
    assert compare_logits(ref, cand).top_k == 1


@pytest.mark.parametrize("tokens", [1, 2, 7, 100])
@pytest.mark.parametrize("most", [1, 40, 41 * 3, 10**6])
def test_a_part_of_the_tokens_has_the_last(tokens: int, most: int) -> None:
    ref = np.zeros((tokens, 40))
    cand = ref.copy()
    cand[-1, 0] = 1.0
    found = compare_logits(ref, cand, max_elements=most)
    assert found.tokens == min(tokens, max(1, most // 40))
    assert found.of == tokens
    assert found.kl_div > 0


def test_many_tokens_are_read_in_parts() -> None:
    ref = numbers(70, 1 << 15)
    cand = nudged(ref, 1e-3)
    whole = compare_logits(ref, cand)
    parts = combined(iter([compare_logits(ref[:11], cand[:11]), compare_logits(ref[11:], cand[11:])]))
    assert parts is not None
    assert parts == pytest.approx(whole)
    assert combined(iter(())) is None


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64, ml_dtypes.float8_e4m3fn, np.int32])
def test_any_type(dtype: type) -> None:
    ref: Array = (numbers(3, 40) * 10).astype(dtype)
    cand: Array = (numbers(3, 40, seed=1) * 10).astype(dtype)
    found = compare_logits(ref, cand)
    wide = compare_logits(ref.astype(np.float64), cand.astype(np.float64))
    assert found == wide
    assert 0 < found.kl_div < INF


def test_no_tokens_tell_nothing() -> None:
    empty = np.empty((0, 40), np.float32)
    found = compare_logits(empty, empty)
    assert found.tokens == 0
    assert math.isnan(found.kl_div)


@pytest.mark.parametrize(
    ("name", "port", "shape", "expected"),
    [
        ("lm_head", "output", (9, 256), True),
        ("model.lm_head", "output_0", (1, 9, 32), True),
        ("decoder.logits", "output", (32,), True),
        ("model", "output_logits", (1, 9, 256), True),
        ("lm_head", "input_0", (9, 256), False),
        ("lm_head", "output", (9, 31), False),
        ("lm_head", "output", (), False),
        ("lm_head.bias", "output", (9, 256), False),
        ("layers.0.mlp", "output", (9, 256), False),
    ],
)
def test_what_is_taken_for_logits(name: str, port: str, shape: tuple[int, ...], expected: bool) -> None:
    assert is_logits(name, port, shape) is expected


def test_what_has_no_distribution() -> None:
    assert not has_distributions(np.zeros(()))
    assert not has_distributions(np.zeros((4, 1)))
    assert not has_distributions(np.zeros((4, 8), complex))
    assert has_distributions(np.zeros((4, 2)))


def test_plain_values_for_json() -> None:
    found = compare_logits(numbers(2, 40), numbers(2, 40)).as_json()
    assert list(found) == list(LogitsDiff._fields)
    assert (found["kl_div"], found["top_1"], found["k"]) == (0, 1, 5)
