"""Rules for types of few bits: tables of positions, what follows a mixture of experts, what is sorted by expert."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tensordiff.compare.comparer import Comparer
from tensordiff.compare.row import Row
from tensordiff.dump.dtypes import Array
from tests.compare.judge.few_bits import off, short
from tests.making import numbers, pairs

X = numbers(24, 64)
QUIET = 0.004


def rows(reference: dict[str, Array], candidate: dict[str, Array]) -> dict[str, Row]:
    return {row.pair.reference.name: row for row in Comparer().rows(pairs(reference, candidate))}


@pytest.mark.parametrize(
    ("layer", "error", "verdict"),
    [("rotary_emb", 0.02, "diverges"), ("rotary_emb", 0.008, "agrees"), ("layers.0.mlp", 0.02, "agrees")],
)
def test_a_table_of_positions_is_off_by_a_few_roundings_at_most(layer: str, error: float, verdict: str) -> None:
    ids = np.arange(24)[None]
    reference, candidate = ({f"{layer}-input_position_ids": ids, f"{layer}-output": x} for x in (X, off(X, error)))
    assert rows(short(reference), short(candidate))[f"{layer}-output"].verdict.name == verdict
    if verdict == "diverges":
        candidate[f"{layer}-input_position_ids"] = ids + 1  # then what it is made of is wrong
        assert rows(short(reference), short(candidate))[f"{layer}-output"].verdict.name != "diverges"


def run(wrong: int, *, is_short: bool, has_router: bool = True, has_inputs: bool = False) -> str:
    """The verdict on a layer of which so many tokens are wrong, after a router whose logits agree."""
    error = QUIET if is_short else 1e-7
    late = off(X, error, 3)
    late[:wrong] += numbers(wrong, 64, seed=4)
    first = "layers.0.mlp.gate" if has_router else "layers.0.mlp.up_proj"
    reference = {
        f"{first}-input_0": X,
        f"{first}-output": X[:, :8],
        "layers.1.mlp-input_0": X,
        "layers.1.mlp-output": X,
    }
    candidate = reference | {
        f"{first}-input_0": off(X, error), f"{first}-output": off(X, error)[:, :8],
        "layers.1.mlp-input_0": off(X, error, 2), "layers.1.mlp-output": late,
    }  # fmt: skip
    if not has_inputs:
        reference.pop("layers.1.mlp-input_0")
    sides = (short(reference), short(candidate)) if is_short else (reference, candidate)
    return rows(*sides)["layers.1.mlp-output"].verdict.name


def test_after_a_mixture_in_few_bits_most_tokens_must_be_wrong() -> None:
    assert run(5, is_short=True) == "drifts"
    assert run(20, is_short=True) == "diverges"
    assert run(5, is_short=False) == "diverges"
    assert run(5, is_short=True, has_router=False) == "diverges"
    assert run(5, is_short=True, has_inputs=True) == "diverges"  # no token that it was given is one that flipped


def test_what_a_router_sorts_by_expert_is_judged_by_its_logits() -> None:
    logits = numbers(24, 4)
    other = logits.copy()
    best = np.argsort(-logits, 1)
    other[3, best[3, 1]], other[3, best[3, 2]] = logits[3, best[3, 2]], logits[3, best[3, 1]]

    def side(values: Array, close: Array) -> dict[str, Array]:
        routes = np.argsort(-values, 1)[:, :2]
        order = routes.reshape(-1).argsort(kind="stable")
        return {"moe.router.layer-output": close, "moe.router-output_0": order, "moe.router-output_1": order // 2}

    reference, candidate = side(logits, logits), side(other, logits * (1 + 1e-7))
    found = rows(reference, candidate)
    assert found["moe.router-output_0"].verdict.name == "diverges"  # its logits do not say that others were taken
    near = logits.copy()
    near[3, best[3, 1]] = near[3, best[3, 2]] + 1e-6
    swapped = near.copy()
    swapped[3, best[3, 1]] -= 2e-6
    found = rows(side(near, near), side(swapped, swapped))
    assert found["moe.router-output_0"].verdict.name == "drifts"
    assert "1 of 24 tokens took other experts" in found["moe.router-output_0"].verdict.why


def test_a_whole_block_may_multiply_more_than_a_layer() -> None:
    def verdict(error: float) -> str:
        names = [f"layers.{k}-output" for k in range(3)]
        reference = dict.fromkeys(names, X)
        candidate = {
            name: off(X, e, 11 + k) for k, (name, e) in enumerate(zip(names, (0.008, 0.008, error), strict=True))
        }
        return rows(short(reference), short(candidate))["layers.2-output"].verdict.name

    assert verdict(0.034) == "drifts"
    assert verdict(0.085) == "diverges"


def test_tokens_that_are_right_in_all_that_ran_since_the_mixture_are_no_flips() -> None:
    """Without its inputs, too, a layer is not excused where a block around the mixture shows every token right."""
    late = off(X, QUIET, 3)
    late[:5] += numbers(5, 64, seed=4)
    reference = {
        "layers.0.mlp.gate-output": X[:, :8],
        "layers.0-output": X,
        "layers.1.self_attn.v_proj-output": X,
        "layers.1.self_attn.o_proj-output": X,
    }
    candidate = {name: off(values, QUIET, k) for k, (name, values) in enumerate(reference.items())}
    candidate["layers.1.self_attn.o_proj-output"] = late
    name = "layers.1.self_attn.o_proj-output"
    assert rows(short(reference), short(candidate))[name].verdict.name == "diverges"
    candidate["layers.0-output"][0] += numbers(64, seed=5)  # a token that flipped
    assert rows(short(reference), short(candidate))[name].verdict.name == "drifts"


def scan(small: int, *, has_inputs: bool) -> dict[str, str]:
    """Verdicts on a norm, and on the module around it, given so many tokens that nearly cancel."""
    states = X.copy()
    states[:small] *= 0.02
    noise = QUIET * 3 * numbers(24, 64, seed=7)
    sides = []
    for x in (states, states + noise):
        normed = x / np.sqrt(np.square(x).mean(-1, keepdims=True))
        sides.append({
            "layers.0.mixer.in_proj-output": X if x is states else off(X, 3 * QUIET),
            "layers.0.mixer-input_0": X if x is states else off(X, 3 * QUIET, 2),
            "layers.0.mixer.norm-input_0": x, "layers.0.mixer.norm-output": normed, "layers.0.mixer-output": normed,
        })  # fmt: skip
    if not has_inputs:
        sides = [{name: values for name, values in side.items() if "input" not in name} for side in sides]
    return {name: row.verdict.name for name, row in rows(*map(short, sides)).items()}


@pytest.mark.parametrize("has_inputs", [True, False])
def test_a_norm_that_scales_small_tokens_up_is_not_to_blame_nor_what_holds_it(has_inputs: bool) -> None:
    assert "diverges" not in scan(1, has_inputs=has_inputs).values()


BATCH = numbers(2, 12, 64)


def test_the_first_block_alone_is_held_to_its_quietest_tokens() -> None:
    """Nothing quiet ran before it; but rounding is even, and all tokens but the first are many times further off."""

    def verdict(first: float, others: float) -> str:
        wrong = BATCH + others * numbers(*BATCH.shape, seed=1)
        wrong[:, 0] = BATCH[:, 0] + first * numbers(2, 64, seed=2)
        sides = ({f"model.layers.{k}-output": x for k in range(2)} for x in (BATCH, wrong))
        return rows(*map(short, sides))["model.layers.0-output"].verdict.name

    assert verdict(QUIET, 0.07) == "diverges"
    assert verdict(0.05, 0.07) == "drifts"  # evenly above rounding: nothing tells
    assert verdict(QUIET, 0.02) == "agrees"


def after_short(change: Array, *, is_noisy: bool) -> Row:
    """The row of a float32 layer behind a float16 one, whose output has some elements changed."""
    wide = X.astype(np.float32)
    shorter = X.astype(np.float16)
    reference: dict[str, Array] = {"a-output": shorter, "b-input_0": wide, "b-output": wide}
    near = off(X, 1e-3) if is_noisy else X
    candidate: dict[str, Array] = {
        "a-output": near.astype(np.float16),
        "b-input_0": near.astype(np.float32),
        "b-output": (near + change).astype(np.float32),
    }
    return rows(reference, candidate)["b-output"]


def test_one_wrong_element_is_no_rounding_of_a_type_before() -> None:
    nothing, one = np.zeros_like(X), np.zeros_like(X)
    one[3, 5] = 0.2
    assert after_short(nothing, is_noisy=False).verdict.name == "agrees"
    assert after_short(one, is_noisy=False).verdict.name == "diverges"
    assert after_short(nothing, is_noisy=True).verdict.name == "agrees"  # rounding on the way, everywhere
    tiny = np.zeros_like(X)
    tiny[3, 5] = 2.0**-11 * abs(X[3, 5])
    assert after_short(tiny, is_noisy=False).verdict.name == "agrees"  # a step of float16


def test_few_wrong_elements_are_told_where_something_before_differs_a_little() -> None:
    """Not bit for bit: then the others must agree as finely as float32 does."""
    wide, one = X.astype(np.float32), X.astype(np.float32)
    one[3, 5] += 0.2
    reference: dict[str, Array] = {"a-output": X.astype(np.float16), "b-output": wide, "c-output": wide}
    candidate = reference | {"b-output": (X * (1 + 1e-7)).astype(np.float32), "c-output": one}
    found = rows(reference, candidate)
    assert [found[f"{name}-output"].verdict.name for name in "abc"] == ["agrees", "agrees", "diverges"]


# --- one token of many, which a norm hides -----------------------------------------------------------------

LONG = numbers(1, 2048, 32, seed=20)


def long_run(layers: int = 4, wrong: int | None = None, token: int = -1, size: int = 1) -> dict[str, Array]:
    """Layers of a long prompt, each with its input; from one on, the last token, or some, is wrong."""
    made: dict[str, Array] = {}
    x = LONG
    for k in range(layers):
        made[f"layers.{k}.mlp-input_0"] = off(x, QUIET, 30 + k)
        x = np.tanh(x) + LONG
        if k == wrong:
            x[:, token : token + size or None] += numbers(1, size, 32, seed=9)
        made[f"layers.{k}.mlp-output"] = off(x, QUIET, 40 + k)
    return short(made)


def test_one_wrong_token_of_a_long_prompt_is_found() -> None:
    """It is 2 % of the norm, and bfloat16 explains 3 %."""
    judged = rows(long_run(), long_run(wrong=2))
    assert judged["layers.2.mlp-output"].diff is not None
    assert judged["layers.2.mlp-output"].diff.rel_l2 < 3e-2
    wrong = [name for name, row in judged.items() if row.verdict.name == "diverges"]
    assert wrong == ["layers.2.mlp-output"]
    assert "holds for most tokens; one is off by" in judged["layers.2.mlp-output"].verdict.why
    assert judged["layers.3.mlp-input_0"].verdict.name == judged["layers.3.mlp-output"].verdict.name == "drifts"


def test_a_long_prompt_without_a_wrong_token_agrees() -> None:
    assert {row.verdict.name for row in rows(long_run(), long_run()).values()} == {"agrees"}


def test_a_large_token_is_further_off_and_right() -> None:
    """The first token of trained models is a thousand times as large as the others, and so is its rounding."""
    reference, candidate = long_run(), long_run()
    for side, seed in ((reference, 50), (candidate, 51)):
        for name, x in side.items():
            large = x.astype(np.float32)
            large[:, 0] = off(1000 * LONG[:, 0], QUIET, seed)
            side[name] = large.astype(ml_dtypes.bfloat16)
    assert {row.verdict.name for row in rows(reference, candidate).values()} == {"agrees"}


def test_one_wrong_token_that_the_mask_hides_is_padding() -> None:
    mask = np.ones((1, 2048), np.int64)
    reference = {"model-input_attention_mask": mask, **long_run()}
    candidate = {"model-input_attention_mask": mask, **long_run(wrong=2)}
    assert rows(reference, candidate)["layers.2.mlp-output"].verdict.name == "diverges"
    mask[:, -1] = 0
    assert "diverges" not in {row.verdict.name for row in rows(reference, candidate).values()}
    assert (
        rows(reference, {**candidate, **long_run(wrong=2, token=5)})["layers.2.mlp-output"].verdict.name == "diverges"
    )
