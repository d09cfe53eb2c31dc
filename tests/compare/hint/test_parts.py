"""Kinds told by other parts, by batches and by calls: right on what is planted, silent on what is not."""

from __future__ import annotations

import numpy as np
import pytest

from tensordiff.align import Pair
from tensordiff.compare.comparer import Comparer
from tensordiff.compare.hint.axes import DumpedPairs
from tensordiff.compare.hint.catalogue import find_hint
from tensordiff.compare.hint.context import HintContext
from tensordiff.compare.hint.row_hint import hint_for_row, later_call
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import entry
from tests.making import MemoryTensor, held, numbers, pairs

X = numbers(24, 64)
OTHER = numbers(24, 64, seed=1)
BATCH = numbers(3, 12, 64, seed=2)


def kind(reference: Array, candidate: Array, context: HintContext | None = None) -> str | None:
    found = find_hint(reference, candidate, context)
    return found and found.kind


def test_a_gate_by_token_and_by_channel_is_told() -> None:
    near = HintContext(near={"part": OTHER})
    by_token = 1 / (1 + np.exp(-2 * numbers(24, 1, seed=3)))
    by_channel = numbers(1, 64, seed=4)
    assert kind(X + by_token * OTHER, X + OTHER, near) == "gate"
    assert kind(X + by_channel * OTHER, X + OTHER, near) == "gate"
    assert kind(X, X + numbers(24, 64, seed=5), near) is None


def test_a_gate_that_is_not_applied_is_told_by_the_input() -> None:
    assert kind(X / (1 + np.exp(-OTHER)), X, HintContext(given={"gate": OTHER})) == "gate"
    assert kind(X * numbers(24, 64, seed=5), X, HintContext(given={"gate": OTHER})) is None


def test_a_cap_is_told_with_its_number() -> None:
    logits = 40 * X
    found = find_hint(30 * np.tanh(logits / 30), logits)
    assert found is not None
    assert (found.kind, found.evidence["without"]) == ("softcap", "candidate")
    assert found.evidence["cap"] == pytest.approx(30, rel=0.01)


def test_a_siblings_values_and_other_weights_are_told_of_matrix_products_only() -> None:
    assert kind(X, OTHER, HintContext(siblings={"up_proj": OTHER})) == "swapped_with"
    assert kind(X, OTHER, HintContext(has_weights=True)) == "other_weights"
    assert kind(X, OTHER) is None
    assert kind(X, X + 0.7 * OTHER, HintContext(has_weights=True)) is None


def normed(x: Array, groups: int) -> Array:
    parts = x.reshape(len(x), groups, -1)
    return np.asarray(parts / np.sqrt(np.square(parts).mean(-1, keepdims=True))).reshape(x.shape)


@pytest.mark.parametrize("groups", [2, 4])
def test_a_norm_of_groups_is_told_without_its_input(groups: int) -> None:
    uneven = X * np.exp(0.8 * numbers(24, groups, seed=6)).repeat(64 // groups, 1)
    weight = 1 + 0.2 * numbers(64, seed=7)
    found = find_hint(normed(uneven, 1) * weight, normed(uneven, groups) * weight)
    assert found is not None
    assert (found.kind, found.evidence["groups"]) == ("norm_groups", groups)


def test_factors_of_groups_that_no_norm_gives_are_no_norm() -> None:
    factors = np.exp(0.5 + 0.3 * numbers(24, 2, seed=6)).repeat(32, 1)
    assert kind(X, X * factors) != "norm_groups"


def test_weights_of_experts_are_summed() -> None:
    weights = np.abs(numbers(24, 2)) + 0.1
    weights = (weights / weights.sum(1, keepdims=True) * np.linspace(0.3, 0.9, 24)[:, None]).astype(np.float32)
    context = HintContext(are_expert_weights=True)
    found = find_hint(weights, weights / weights.sum(1, keepdims=True), context)
    assert found is not None
    assert found.kind == "expert_weights"
    assert "only the candidate normalizes" in found.sentence
    assert kind(weights, weights / weights.sum(1, keepdims=True)) == "scale_per_token"


@pytest.mark.parametrize(("rows", "told"), [([1], "only row 1 of 3"), ([1, 2], "all rows of the batch but the first")])
def test_rows_of_a_batch_are_named(rows: list[int], told: str) -> None:
    wrong = BATCH.copy()
    wrong[rows] += numbers(len(rows), 12, 64, seed=8)
    found = find_hint(BATCH, wrong, HintContext(batch=3))
    assert found is not None
    assert (found.kind, found.evidence["rows"]) == ("batch_rows", rows)
    assert told in found.sentence
    other = find_hint(BATCH, wrong)  # what the first axis is, is not known
    assert other is None or other.kind != "batch_rows"


def test_only_hidden_tokens_wrong_is_padding() -> None:
    hidden = np.zeros((3, 12), bool)
    hidden[0, :4] = True
    wrong = BATCH.copy()
    wrong[0, :4] += numbers(4, 64, seed=9)
    assert kind(BATCH, wrong, HintContext(batch=3, hidden=hidden)) == "padding"
    wrong[1, 5] += 1
    assert kind(BATCH, wrong, HintContext(batch=3, hidden=hidden)) != "padding"


def test_sines_and_cosines_in_turns_are_told_from_halves() -> None:
    angles = np.arange(24)[:, None] * 1e4 ** (-np.arange(16) / 16)
    halves = np.concatenate((np.sin(angles), np.cos(angles)), -1)
    turns = np.stack((np.sin(angles), np.cos(angles)), -1).reshape(24, 32)
    found = find_hint(halves, turns)
    assert found is not None
    assert found.kind in ("sinusoids", "rope_order")


def test_tokens_further_off_are_shifted() -> None:
    long = numbers(40, 64)
    found = find_hint(long[:32], long[2:34])
    assert found is not None
    assert (found.kind, found.evidence["by"]) == ("shifted", -2)
    assert "2 places after" in found.sentence


@pytest.mark.parametrize(("tokens", "kind"), [(1, "decode_only"), (4, "chunk_boundary")])
def test_what_is_wrong_in_a_later_call_alone_is_said_to_be(tokens: int, kind: str) -> None:
    sides = [numbers(2, 12, 64), numbers(2, tokens, 64, seed=3)], [numbers(2, 12, 64), numbers(2, tokens, 64, seed=4)]
    found = [
        Pair(k, "conv", entry("conv-output", MemoryTensor(ref), k), entry("conv-output", MemoryTensor(cand), k), "name")
        for k, (ref, cand) in enumerate(zip(*sides, strict=True))
    ]
    rows = list(Comparer().rows(found))
    hint = later_call(rows[1], DumpedPairs(found))
    assert hint is not None
    assert (hint.kind, hint.evidence["step"]) == (kind, 1)
    assert later_call(rows[0], DumpedPairs(found)) is None


def test_a_hint_names_frames_where_channels_stand_before_them() -> None:
    waves = numbers(1, 8, 30)
    wrong = waves.copy()
    wrong[..., 20:] += numbers(1, 8, 10, seed=1)
    reference, candidate = {"conv1d": waves}, {"conv1d": wrong}
    found = list(pairs(reference, candidate))
    (row,) = Comparer().rows(found)
    hint = hint_for_row(row, found, held(reference))
    assert hint is not None
    assert (hint.kind, hint.evidence["axis"]) == ("from_token", 2)
    assert "frame 20" in hint.sentence


def test_other_weights_are_told_under_a_bias_that_both_sides_have() -> None:
    bias = 5 * numbers(64, seed=9)
    assert kind(X + bias, OTHER + bias, HintContext(has_weights=True)) == "other_weights"
    assert kind(X + bias, X + 0.7 * OTHER + bias, HintContext(has_weights=True)) is None


@pytest.mark.parametrize(("name", "states", "told"), [
    ("lm_head", X, "other_weights"),
    ("model", X, "other_weights"),
    ("model.layers.1.mlp.down_proj", X, None),  # what it was given may be wrong
    ("lm_head", X + 0.5 * OTHER, None),
])  # fmt: skip
def test_other_weights_of_a_head_need_no_inputs(name: str, states: Array, told: str | None) -> None:
    """What a head is given are the last states, which agree."""
    logits = [numbers(24, 96, seed=seed) for seed in (3, 4)]
    sides = [
        {"model.layers.0-output": x + 1e-7 * OTHER * k, "model.layers.1-output": s, f"{name}-output": y}
        for k, (x, s, y) in enumerate(((X, X, logits[0]), (X, states + 1e-7 * OTHER, logits[1])))
    ]
    matched = pairs(sides[0], sides[1])
    last = list(Comparer().rows(matched))[-1]
    found = hint_for_row(last, matched, held(sides[0]))
    assert (found and found.kind) == told
