"""Experts: routes first, and what they gave where routes agree."""

from __future__ import annotations

import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tensordiff.compare.comparer import Comparer
from tensordiff.compare.row import Row
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Origin
from tensordiff.search.outcome import Outcome
from tensordiff.session.from_arrays import session_of
from tests.making import nudged, numbers, pairs

Tensors = dict[str, Array | None]
TOKENS, EXPERTS, WIDTH = 12, 6, 16
LOGITS = numbers(TOKENS, EXPERTS)
LOGITS[4, np.argsort(-LOGITS[4])[2]] = np.sort(LOGITS[4])[-2] - 4e-3  # the second and third are all but equal
FLIPPED = LOGITS.copy()
FLIPPED[4, np.argsort(-LOGITS[4])[2]] += 8e-3
OUT = numbers(TOKENS, WIDTH, seed=1)


def best(logits: Array) -> Array:
    return np.argsort(-logits, axis=1)[:, :2].copy()


def mixture(logits: Array, routes: Array, out: Array) -> Tensors:
    """A router and its experts, in bfloat16 as such flips come."""
    low = out.astype(ml_dtypes.bfloat16)
    gate: Tensors = {"x": low, "b.moe.gate-output_0": logits.astype(np.float16), "b.moe.gate-output_1": routes}
    return gate | {"b.moe.experts-input_1": routes, "b.moe.experts-output": low, "b.moe-output": low, "b-output": low}


def rows(reference: Tensors, candidate: Tensors) -> dict[str, Row]:
    return {row.pair.reference.name: row for row in Comparer().rows(pairs(reference, candidate))}


def with_token_4(out: Array) -> Array:
    wrong = out.copy()
    wrong[4] = numbers(WIDTH, seed=7)
    return wrong


def test_a_route_that_flips_at_a_near_tie_is_nobody_s_error() -> None:
    reference = mixture(LOGITS, best(LOGITS), OUT)
    candidate = mixture(FLIPPED, best(FLIPPED), with_token_4(OUT)) | {"x": reference["x"]}
    found = rows(reference, candidate)
    assert {row.verdict.name for row in found.values()} <= {"agrees", "drifts"}
    assert found["b.moe.gate-output_1"].verdict.why.startswith("1 of 12 tokens took other experts, at a near-tie: ")
    for name in ("b.moe.experts-output", "b.moe-output", "b-output"):
        assert "1 of 12 tokens took other experts, at a near-tie; the others 0.0e+00" in found[name].verdict.why


def test_an_expert_that_is_wrong_where_routes_agree_is_named() -> None:
    reference, wrong = mixture(LOGITS, best(LOGITS), OUT), with_token_4(OUT)
    wrong[6:] = numbers(6, WIDTH, seed=8)
    candidate = mixture(FLIPPED, best(FLIPPED), wrong) | {"x": reference["x"]}
    found = rows(reference, candidate)["b.moe.experts-output"]
    assert found.verdict.name == "diverges"
    assert "where the routes agree" in found.verdict.why


def test_routes_that_the_router_s_own_logits_do_not_call_the_best_are_wrong() -> None:
    worst = np.argsort(LOGITS, axis=1)[:, :2].copy()
    found = rows(mixture(LOGITS, best(LOGITS), OUT), mixture(LOGITS, worst, OUT))["b.moe.gate-output_1"]
    assert found.verdict.name == "diverges"
    assert "not those that the router's own logits rank highest" in found.verdict.why


def test_the_same_experts_in_another_order_agree() -> None:
    routes = best(LOGITS)
    reference, candidate = (mixture(LOGITS, taken, OUT) for taken in (routes, routes[:, ::-1].copy()))
    rows_of = np.repeat(numbers(TOKENS, WIDTH, seed=3), 2, axis=0) * np.tile([1.0, 2.0], TOKENS)[:, None]
    by_choice = rows_of.reshape(TOKENS, 2, WIDTH)[:, ::-1].reshape(rows_of.shape)
    order = list(reference)[:-3]
    sides = [
        {name: side[name] for name in order} | {"b.moe.act": acted.astype(np.float32)}
        for side, acted in ((reference, rows_of), (candidate, by_choice))
    ]
    found = rows(dict(sides[0]), dict(sides[1]))
    assert found["b.moe.gate-output_1"].verdict == ("agrees", "the same experts, in another order")
    assert found["b.moe.act"].verdict.name == "drifts"


def test_integers_that_are_no_routes_must_be_equal() -> None:
    ids = np.arange(24).reshape(12, 2)
    found = rows({"x": OUT, "ids-output": ids}, {"x": OUT, "ids-output": ids + 1})["ids-output"]
    assert (found.verdict.name, found.verdict.why.split(";")[0]) == ("diverges", "24 of 24 integers differ")


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_routes_by_logits_that_are_not_finite_are_a_victim_s(odd: float) -> None:
    logits = LOGITS.copy()
    logits[4] = odd
    routes = best(LOGITS)
    routes[4] = [5, 4] if set(routes[4]) != {4, 5} else [0, 1]
    reference, candidate = mixture(LOGITS, best(LOGITS), OUT), mixture(logits, routes, nudged(OUT, 1e-3))
    found = rows(reference, candidate)
    assert found["b.moe.gate-output_0"].verdict.name == "diverges"
    assert found["b.moe.gate-output_1"].verdict.name == "drifts"


# --- integers that are no routes -----------------------------------------------------------------

ROW = np.array([[5, 7, 9, 2]])


@pytest.mark.parametrize("name", ["input_ids", "cache_position", "sort_idx", "layers.0.attn.order", "qwen3_moe.ids"])
def test_the_order_of_integers_that_nobody_chose_counts(name: str) -> None:
    found = rows({"x": OUT, name: ROW}, {"x": OUT, name: ROW[:, ::-1].copy()})[name]
    assert (found.verdict.name, found.verdict.why.split(";")[0]) == ("diverges", "4 of 4 integers differ")


@pytest.mark.parametrize(
    "name", ["layers.0.mlp.gate-output_2", "layers.0.moe.topk_ids", "l.0.ffn.router/op_03_aten.topk"]
)
def test_a_router_is_known_by_its_name_where_no_logits_were_dumped(name: str) -> None:
    found = rows({name: ROW}, {name: ROW[:, ::-1].copy()})[name]
    assert found.verdict == ("agrees", "the same experts, in another order")


def test_a_router_is_known_by_its_class() -> None:
    (pair,) = pairs({"layers.0.mlp.w": ROW}, {"layers.0.mlp.w": ROW[:, ::-1].copy()})
    for module_class, verdict in (("MixtralTopKRouter", "agrees"), ("MixtralDecoderLayer", "diverges")):
        entry = pair.reference._replace(origin=Origin(module_class))
        (found,) = Comparer().rows([replace(pair, reference=entry)])
        assert found.verdict.name == verdict


def test_a_router_of_any_name_is_known_by_its_logits() -> None:
    routes = best(LOGITS)
    reference: Tensors = {"w": LOGITS, "chosen": routes}
    found = rows(reference, {"w": LOGITS, "chosen": routes[:, ::-1].copy()})["chosen"]
    assert found.verdict == ("agrees", "the same experts, in another order")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("other", [ROW + 0.9, ROW[:, ::-1] + 0.0, ROW + 1j])
def test_integers_and_floats_are_no_routes(other: Array) -> None:
    found = rows({"b.moe.gate-output": ROW}, {"b.moe.gate-output": other})["b.moe.gate-output"]
    assert found.verdict.name == "diverges"


@pytest.mark.parametrize("wrong", [-100, EXPERTS, 1 << 40])
def test_experts_that_there_are_not_are_wrong(wrong: int) -> None:
    routes = best(LOGITS)
    routes[3, 0] = wrong
    reference = mixture(LOGITS, best(LOGITS), OUT)
    assert rows(reference, mixture(LOGITS, routes, OUT))["b.moe.gate-output_1"].verdict.name == "diverges"
    assert rows(mixture(LOGITS, routes, OUT), reference)["b.moe.gate-output_1"].verdict.name == "diverges"


def outcome_of(reference: Tensors, candidate: Tensors) -> Outcome:
    session = session_of(reference, candidate)
    return session.outcome(session.rows())


def test_only_near_ties_that_logits_show_excuse_what_the_model_gives() -> None:
    """Chosen by a bias that was not dumped, other experts may be rounding's or a bug's: nothing can be said then."""
    reference = mixture(LOGITS, best(LOGITS), OUT)
    candidate = mixture(FLIPPED, best(FLIPPED), with_token_4(OUT)) | {"x": reference["x"]}
    assert outcome_of(reference, candidate).exit_status == 0
    bias = 3 * numbers(EXPERTS, seed=11)
    noisy = LOGITS + 0.02 * numbers(TOKENS, EXPERTS, seed=12)
    routes = best(LOGITS + bias)
    other = routes.copy()
    other[4, 1] = next(e for e in range(EXPERTS) if e not in routes[4])
    nearly: Tensors = {"x": (OUT * 1.005).astype(ml_dtypes.bfloat16)}
    found = outcome_of(mixture(LOGITS, routes, OUT), mixture(noisy, other, with_token_4(OUT)) | nearly)
    assert (found.culprit, found.exit_status) == (None, 2)
    assert "nothing shows that these were near-ties" in found.doubts[0]


def sorted_by_expert(logits: Array, prefers_last: bool = False) -> Tensors:
    """A router that hands on the places of tokens, sorted by expert, and its logits, as those of Granite do."""
    each = -logits[:, ::-1] if prefers_last else -logits
    routes = np.argsort(each, axis=1, kind="stable")[:, :2]
    routes = EXPERTS - 1 - routes if prefers_last else routes
    low = logits.astype(ml_dtypes.bfloat16)
    return {
        "x": OUT.astype(ml_dtypes.bfloat16),
        "b.moe.router.layer-output": low,
        "b.moe.router-output_0": routes.reshape(-1).argsort(kind="stable"),
        "b.moe-output": low,
    }


def placed(router: Tensors) -> Array:
    places = router["b.moe.router-output_0"]
    assert places is not None
    return places


def test_of_experts_that_score_the_same_either_may_be_taken() -> None:
    """Logits in few bits are often equal, and each side sorts them in its own way."""
    tied = np.round(LOGITS * 64) / 64 + np.arange(EXPERTS) / 8
    second, third = np.sort(tied[4])[[-2, -3]]
    tied[4][tied[4] == third] = second
    reference, candidate = sorted_by_expert(tied), sorted_by_expert(tied, prefers_last=True)
    assert not np.array_equal(placed(reference), placed(candidate))
    assert rows(reference, candidate)["b.moe.router-output_0"].verdict.name == "drifts"
    clear = sorted_by_expert(LOGITS + np.arange(EXPERTS) / 8)
    wrong = clear | {"b.moe.router-output_0": np.roll(placed(clear), 1)}
    assert rows(clear, wrong)["b.moe.router-output_0"].verdict.name == "diverges"


def test_a_tie_excuses_the_order_of_weights_and_not_other_weights() -> None:
    tied = LOGITS + np.arange(EXPERTS) / 8
    tied[4] = tied[4, 0]
    weights = np.abs(numbers(2 * TOKENS, seed=5)).astype(ml_dtypes.bfloat16)
    reference = sorted_by_expert(tied) | {"b.moe.router-output_1": weights}
    scaled = sorted_by_expert(tied) | {"b.moe.router-output_1": (2.5 * weights).astype(ml_dtypes.bfloat16)}
    moved = sorted_by_expert(tied) | {"b.moe.router-output_1": np.roll(weights, 1)}
    assert rows(reference, moved)["b.moe.router-output_1"].verdict.name == "drifts"
    assert rows(reference, scaled)["b.moe.router-output_1"].verdict.name == "diverges"
