"""``vllm:`` for real: captured, paired, injected, and planted bugs named. Loading a model takes it most of a minute."""

from __future__ import annotations

from typing import Any

import pytest

from tensordiff.capture.provenance import decode_tokens
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError
from tests.capture_engines.checkpoints import Bug, scaled_norm, swapped
from tests.capture_engines.running import (
    STEPS,
    Shelf,
    compared,
    culprit,
    injected_layers,
    orphan_outputs,
    wrong_by_themselves,
)  # fmt: skip

KIND = "vllm"
NOT_ISOLATED = (".rotary_emb", ".attn", "model.model")
"""What transformers computes by functions, so that no layer has its inputs; and the model without its head."""


def not_isolated(dump: Any) -> set[str]:
    names = (name.partition(" step ")[0] for name, call in injected_layers(dump).items() if not call["isolated"])
    return {name for name in names if not name.endswith(NOT_ISOLATED)}


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3"])
def test_a_right_checkpoint_agrees_in_every_layer_and_step(shelf: Shelf, name: str) -> None:
    source, reference = shelf.source(KIND, name), shelf.reference(name)
    session = compared(reference, shelf.capture(source), shelf.injected(source, reference))
    outcome = session.outcome(list(session.comparer.rows(session.pairs)))
    assert (outcome.verdict, outcome.culprit) == ("agrees", None)
    # transformers turns by a function, which is no layer
    assert orphan_outputs(session) == {f"model.model.layers.{layer}.self_attn.rotary_emb" for layer in (0, 1)}
    paired = {(pair.name, pair.reference.step) for pair in session.pairs}
    assert {("lm_head", step) for step in range(STEPS)} | {("layers.1", step) for step in range(STEPS)} <= paired
    assert wrong_by_themselves(session) == set()
    assert session.third_dumps.injected is not None
    assert not_isolated(session.third_dumps.injected) == set()


def test_gpt2_agrees(shelf: Shelf) -> None:
    session = compared(shelf.reference("gpt2"), shelf.capture(shelf.source(KIND, "gpt2")))
    outcome = session.outcome(list(session.comparer.rows(session.pairs)))
    assert (outcome.verdict, outcome.culprit, orphan_outputs(session)) == ("agrees", None, set())


@pytest.mark.parametrize(
    ("bug", "named"),
    [
        (scaled_norm, {"layers.1.post_attention_layernorm"}),
        (swapped, {"layers.0.mlp.gate_up_proj"}),
    ],
)
def test_a_planted_bug_is_named(shelf: Shelf, bug: Bug, named: set[str]) -> None:
    source, reference = shelf.source(KIND, "llama", bug), shelf.reference("llama")
    session = compared(reference, shelf.capture(source), shelf.injected(source, reference))
    assert {culprit(session)} == wrong_by_themselves(session) == named


def test_another_rope_theta_is_named(shelf: Shelf) -> None:
    source, reference = shelf.source(KIND, "llama"), shelf.reference("llama")
    wrong: dict[str, Any] = {"config": {"rope_parameters.rope_theta": 3000.0}}
    session = compared(reference, shelf.capture(source, **wrong), shelf.injected(source, reference, **wrong))
    assert culprit(session) == "layers.0.self_attn"


def test_bfloat16_has_no_false_culprit(shelf: Shelf) -> None:
    reference = shelf.reference("llama", dtype="bfloat16")
    candidate = shelf.capture(shelf.source(KIND, "llama"), dtype="bfloat16")
    assert culprit(compared(reference, candidate)) is None


def test_later_steps_are_given_the_tokens_of_the_reference(shelf: Shelf) -> None:
    source, forced = shelf.source(KIND, "llama"), (9, 8, 7)
    reference = shelf.reference("llama", decode_ids=forced)
    candidate = shelf.capture(source, decode_ids=forced)
    assert decode_tokens(open_dump(candidate), STEPS) == forced
    assert culprit(compared(reference, candidate)) is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"weights_dtype": "bfloat16"}, "--weights-dtype is not for vllm: sources"),
        ({"device": "mps"}, "--device mps: vLLM runs on the device it was built for"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_sentence(shelf: Shelf, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(CaptureError, match=r"\S") as raised:
        shelf.capture(shelf.source(KIND, "llama"), **settings)
    assert said in str(raised.value)
