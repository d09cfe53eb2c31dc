"""What tokens that took other experts excuse, in few bits, and what they do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tensordiff.compare.comparer import Comparer
from tensordiff.compare.judge.routes import most_flips
from tensordiff.compare.row import Row
from tensordiff.dump.dtypes import Array
from tests.compare.judge.few_bits import off, short
from tests.making import numbers, pairs

TOKENS = 24
X = numbers(TOKENS, 64)
LOGITS = numbers(TOKENS, 8, seed=2)
QUIET, WRONG = 0.004, 0.8


def wrong_from(first: int, seed: int) -> Array:
    """Right up to a token, and far off from there on."""
    return np.concatenate([off(X, QUIET, seed)[:first], off(X, WRONG, seed)[first:]])


def best(logits: Array) -> Array:
    return np.argsort(-logits, axis=1)[:, :2].copy()


def rows(
    reference: dict[str, Array],
    candidate: dict[str, Array],
    steps: tuple[int, ...] = (),
    has_experts: bool | None = None,
) -> dict[str, Row]:
    """Both sides in bfloat16, by the reference's names; each entry in its step, the first unless given."""
    found = pairs(short(reference), short(candidate))
    for k, step in enumerate(steps):
        one = found[k]
        moved = [side._replace(step=step) for side in (one.reference, one.candidate)]
        found = (*found[:k], replace(one, reference=moved[0], candidate=moved[1]), *found[k + 1 :])
    return {row.pair.reference.name: row for row in Comparer(has_experts=has_experts).rows(found)}


@pytest.mark.parametrize("has_inputs", [True, False])
def test_a_wrong_expert_is_named_where_the_routes_are_seen_to_be_the_same(has_inputs: bool) -> None:
    given = {"b.moe.experts-input_0": X, "b.moe.experts-input_1": best(LOGITS)} if has_inputs else {}
    reference = {
        "embed-output": X, "b.moe.gate-output_0": LOGITS, "b.moe.gate-output_1": best(LOGITS), **given,
        "b.moe.experts-output": X,
    }  # fmt: skip
    late = off(X, QUIET, 3)
    late[:3] += numbers(3, 64, seed=4)
    quiet = {name: off(one, QUIET) for name, one in reference.items() if one.dtype.kind == "f"}
    candidate = reference | quiet | {"b.moe.gate-output_0": LOGITS, "b.moe.experts-output": late}
    assert rows(reference, candidate)["b.moe.experts-output"].verdict.name == "diverges"
    for side in (reference, candidate):
        for name in ("b.moe.gate-output_1", "b.moe.experts-input_1"):
            side.pop(name, None)
    # Where only the logits are seen, they say how many tokens rounding may have sent elsewhere: none if they are equal.
    assert rows(reference, candidate)["b.moe.experts-output"].verdict.name == "diverges"
    candidate["b.moe.gate-output_0"] = off(LOGITS, 0.05, 5)
    assert rows(reference, candidate)["b.moe.experts-output"].verdict.name == "drifts"


@pytest.mark.parametrize(("wrong", "verdict"), [(3, "drifts"), (11, "diverges")])
def test_no_more_tokens_go_elsewhere_than_the_logits_of_their_router_may_send(wrong: int, verdict: str) -> None:
    """Rows that are sorted by expert hold other tokens then; they explain nothing of what the experts give."""
    names = ("embed-output", "b.moe.gate-output", "b.moe.experts.act-output", "b.moe.experts-output")
    reference = dict(zip(names, (X, LOGITS, X[:9], X), strict=True))
    late = off(X, QUIET, 3)
    late[:wrong] += numbers(wrong, 64, seed=4)
    results = (off(X, QUIET), off(LOGITS, 0.05, 5), numbers(9, 64, seed=6), late)
    found = rows(reference, dict(zip(names, results, strict=True)))
    assert "may be other tokens here" in found["b.moe.experts.act-output"].verdict.why
    assert found["b.moe.experts-output"].verdict.name == verdict


@pytest.mark.parametrize(("tokens", "verdict"), [(1, "drifts"), (2, "drifts"), (9, "diverges")])
def test_one_of_few_tokens_may_go_elsewhere_whatever_the_logits_say(tokens: int, verdict: str) -> None:
    """What a router adds to its logits is not dumped."""
    sure = np.tile(np.arange(8, dtype=np.float32), (tokens, 1))
    names = ("embed-output", "b.moe.gate-output", "b.moe.experts-output")
    reference = dict(zip(names, (X, sure, X[:tokens]), strict=True))
    late = off(X, QUIET, 3)[:tokens]
    late[0] += numbers(64, seed=4)
    found = rows(reference, dict(zip(names, (off(X, QUIET), sure, late), strict=True)))
    assert found["b.moe.experts-output"].verdict.name == verdict


@pytest.mark.parametrize(("error", "most"), [(0.0, 0), (1e-6, 0), (6.5e-3, 2)])
def test_a_bias_that_was_not_dumped_may_bring_about_ties_that_the_logits_do_not_show(error: float, most: int) -> None:
    """No two of these logits are near each other."""
    logits = np.tile(np.linspace(-2, 2, 8), (TOKENS, 1))
    assert most_flips(logits, logits + error * np.sqrt((logits**2).mean()) * numbers(TOKENS, 8, seed=3)) == most


@pytest.mark.parametrize(("port", "verdict"), [("past_key_values_key", "drifts"), ("bias", "diverges")])
def test_what_a_part_kept_of_earlier_steps_came_into_the_module_too(port: str, verdict: str) -> None:
    names = ("early-output", "b-input_0", f"b.attn-input_{port}", "b-output")
    reference = dict.fromkeys(names, X)
    candidate = {
        name: off(X, error, k) for k, (name, error) in enumerate(zip(names, (0.3, QUIET, 0.3, 0.3), strict=True))
    }
    assert rows(reference, candidate)["b-output"].verdict.name == verdict


def flipped() -> tuple[dict[str, Array], dict[str, Array]]:
    """A mixture that sends token 15 elsewhere, at a near-tie."""
    near = LOGITS.copy()
    order = np.argsort(-near[15])
    near[15, order[2]] = near[15, order[1]] - 4e-3
    other = near.copy()
    other[15, order[2]] += 8e-3
    return tuple({"a.moe.gate-output_0": side, "a.moe.gate-output_1": best(side)} for side in (near, other))  # type: ignore[return-value]


@pytest.mark.parametrize(("first_wrong", "verdict"), [(0, "diverges"), (15, "drifts")])
def test_tokens_that_no_other_expert_reaches_are_judged_by_themselves(first_wrong: int, verdict: str) -> None:
    """From token 15 on a layer is given what is wrong, and gives twice as much; its tokens before were given right."""
    reference, candidate = flipped()
    reference |= {"b.attn-input_0": X, "b.attn-output": X}
    candidate |= {"b.attn-input_0": wrong_from(15, 5), "b.attn-output": off(wrong_from(first_wrong, 6), 0.4, 7)}
    if first_wrong:
        candidate["b.attn-output"][:15] = off(X, QUIET, 8)[:15]
    row = rows(reference, candidate)["b.attn-output"]
    assert row.verdict.name == verdict
    assert ("no token that took other experts reaches them" in row.verdict.why) == (verdict == "diverges")


@pytest.mark.parametrize(("kept", "verdict"), [(0.3, "drifts"), (QUIET, "diverges")])
def test_what_is_kept_of_a_step_may_be_as_wrong_as_its_worst_token(kept: float, verdict: str) -> None:
    before = off(X, QUIET)
    before[3] = off(X, kept, 9)[3]
    reference = {"layers.0-output": X, "layers.1-output": X, "layers.0(2)-output": X, "layers.1(2)-output": X}
    results = (off(X, QUIET, 2), before, off(X, QUIET, 3), off(X, 0.22, 4))
    candidate = dict(zip(reference, results, strict=True))
    assert rows(reference, candidate, (0, 0, 1, 1))["layers.1(2)-output"].verdict.name == verdict


def test_where_all_tokens_took_other_experts_what_these_gave_is_not_judged() -> None:
    logits = np.array([[3.0, 2.0, 1.998, 0.0], [0.0, 2.0, 3.0, 1.998]], np.float32)
    other = logits.copy()
    other[0, 2] += 4e-3
    other[1, 3] += 4e-3
    x = numbers(2, 64)
    reference, candidate = (
        {"b.moe.gate-output_0": side, "b.moe.gate-output_1": best(side), "b.moe.experts-output": out}
        for side, out in ((logits, x), (other, numbers(2, 64, seed=9)))
    )
    row = rows(reference, candidate)["b.moe.experts-output"]
    assert row.verdict.name == "drifts" and "none can be compared" in row.verdict.why


@pytest.mark.parametrize(("step", "verdict"), [(0, "diverges"), (1, "drifts")])
def test_two_numbers_of_a_later_step_are_too_few_to_tell(step: int, verdict: str) -> None:
    """A dot product may cancel; how well it does shows in the first step, which has more tokens."""
    reference = {"x-output": X, "gate-output": np.array([[0.01], [-0.02]], np.float32)}
    candidate = {"x-output": off(X, QUIET), "gate-output": np.array([[0.05], [0.03]], np.float32)}
    assert rows(reference, candidate, (step, step))["gate-output"].verdict.name == verdict


@pytest.mark.parametrize(("texts", "verdict"), [(1, "diverges"), (2, "drifts")])
def test_the_first_tokens_of_several_texts_may_be_padding(texts: int, verdict: str) -> None:
    reference, candidate = flipped()
    shape = (texts, TOKENS // texts, 64)
    reference |= {"b.attn-input_0": X.reshape(shape), "b.attn-output": X.reshape(shape)}
    candidate |= {
        "b.attn-input_0": wrong_from(15, 5).reshape(shape),
        "b.attn-output": off(wrong_from(0, 6), 0.4, 7).reshape(shape),
    }
    assert rows(reference, candidate)["b.attn-output"].verdict.name == verdict


def test_a_first_block_of_which_one_text_is_right_is_wrong_below_the_floor_of_all() -> None:
    reference = {"layers.0-output": X.reshape(2, 12, 64)}
    uneven = np.concatenate([off(X, 0.001)[:10], off(X, 0.034)[10:]])
    verdict = rows(reference, {"layers.0-output": uneven.reshape(2, 12, 64)})["layers.0-output"].verdict
    even = rows(reference, {"layers.0-output": off(X, 0.026).reshape(2, 12, 64)})["layers.0-output"].verdict
    assert (verdict.name, even.name) == ("diverges", "agrees") and "rounding is even" in verdict.why


Sides = tuple[tuple[Array, Array], tuple[Array, Array]]
"""Of the reference and of the candidate: the logits of a router, and the experts that it chose."""


def routes_of_decoded(prompt: Sides, decoded: Sides) -> Row:
    """The row of the experts that were chosen for tokens that are decoded after a prompt."""
    names = ("b.moe.gate-output", "b.moe.experts-input_1")
    steps = [pairs(*(short(dict(zip(names, side, strict=True))) for side in sides)) for sides in (prompt, decoded)]
    later = [
        replace(
            one, index=2 + one.index, reference=one.reference._replace(step=1), candidate=one.candidate._replace(step=1)
        )
        for one in steps[1]
    ]
    return list(Comparer().rows((*steps[0], *later)))[3]


@pytest.mark.parametrize(("prompt_is_right", "verdict"), [(True, "drifts"), (False, "diverges")])
def test_two_decoded_tokens_may_go_elsewhere_where_the_router_sent_the_prompt_rightly(
    prompt_is_right: bool, verdict: str
) -> None:
    """What decides is not in the logits: a bias is added. Of the 24 tokens of the prompt one, or 20, went elsewhere."""
    count = 1 if prompt_is_right else 20
    chosen = best(LOGITS + 3 * numbers(8, seed=9))
    elsewhere = np.where(np.arange(TOKENS)[:, None] < count, (chosen + 1) % 8, chosen)
    prompt = ((LOGITS, chosen), (off(LOGITS, 0.02), elsewhere))
    decoded = ((LOGITS[:2], chosen[:2]), (off(LOGITS[:2], 0.02), (chosen[:2] + 1) % 8))
    assert routes_of_decoded(prompt, decoded).verdict.name == verdict


@pytest.mark.parametrize(
    ("has_experts", "errors", "verdict"),
    [
        (True, (0.5,), "drifts"),
        (True, (0.5, QUIET), "drifts"),
        (True, (0.06,), "drifts"),
        (True, (0.5, 0.5), "diverges"),
        (None, (0.5,), "diverges"),
        (False, (0.5,), "diverges"),
    ],
)
def test_one_decoded_token_of_a_block_may_go_elsewhere_if_the_model_has_experts(
    has_experts: bool | None, errors: tuple[float, ...], verdict: str
) -> None:
    few = X[: len(errors)]
    reference = {"layers.0-output": X, "layers.1-output": X, "layers.0(2)-output": few, "layers.1(2)-output": few}
    decoded = np.concatenate([off(few, error, 5)[k : k + 1] for k, error in enumerate(errors)])
    results = (off(X, QUIET, 2), off(X, QUIET, 3), off(few, QUIET, 4), decoded)
    candidate = dict(zip(reference, results, strict=True))
    row = rows(reference, candidate, (0, 0, 1, 1), has_experts)["layers.1(2)-output"]
    assert row.verdict.name == verdict
    assert row.is_undecided == (verdict == "drifts")


@pytest.mark.parametrize(("prompt_is_right", "verdict"), [(True, "drifts"), (False, "diverges")])
def test_one_decoded_token_is_too_few_to_tell_by_what_its_experts_are_chosen(
    prompt_is_right: bool, verdict: str
) -> None:
    """A bias is added to the logits. The token's experts would be the best without it as well."""
    chosen = best(LOGITS + numbers(8, seed=9))
    alone = next(k for k in range(TOKENS) if set(chosen[k]) == set(best(LOGITS)[k]))
    elsewhere = chosen if prompt_is_right else (chosen + 1) % 8
    prompt = ((LOGITS, chosen), (off(LOGITS, 0.02), elsewhere))
    token = slice(alone, alone + 1)
    decoded = ((LOGITS[token], chosen[token]), (off(LOGITS[token], 0.02), (chosen[token] + 1) % 8))
    assert routes_of_decoded(prompt, decoded).verdict.name == verdict


def test_no_padding_is_guessed_for_what_known_routes_explain() -> None:
    """Token 15 of two texts of 24, of which the tokens before it might be padding."""
    reference, candidate = flipped()
    wrong = off(X, QUIET, 5)
    wrong[15] = numbers(64, seed=6)
    reference |= {"a.moe.experts-output": X, "a.moe-output": X.reshape(2, 12, 64)}
    candidate |= {"a.moe.experts-output": wrong, "a.moe-output": wrong.reshape(2, 12, 64)}
    row = rows(reference, candidate)["a.moe-output"]
    assert row.verdict.name == "drifts" and "took other experts" in row.verdict.why
    assert row.set_aside is None


def test_a_module_is_right_whose_norm_scales_small_tokens_up() -> None:
    """One in many tokens nearly cancels before the norm, which makes it as large as all others."""
    before, late = numbers(256, 64), 40
    before[late] *= 1e-3
    rounded = off(before, QUIET)
    rounded[late] += 1e-3 * numbers(64, seed=8)

    def normed(x: Array) -> Array:
        return np.asarray(x / np.sqrt((x * x).mean(1, keepdims=True)))

    names = ("m-input_0", "m.norm-input_0", "m.norm-output", "m-output")
    given = numbers(256, 64, seed=9)
    reference = dict(zip(names, (given, before, normed(before), normed(before)), strict=True))
    candidate = dict(zip(names, (off(given, QUIET), rounded, normed(rounded), normed(rounded)), strict=True))
    found = rows(reference, candidate)
    assert found["m-output"].verdict.name == "drifts" and "scaled it up" in found["m-output"].verdict.why
    rounded = off(before, QUIET)
    rounded[late + 1] = numbers(64, seed=8)  # wrong by its usual size, which no norm makes of it
    candidate = dict(zip(names, (off(given, QUIET), rounded, normed(rounded), normed(rounded)), strict=True))
    assert rows(reference, candidate)["m-output"].verdict.name == "diverges"
