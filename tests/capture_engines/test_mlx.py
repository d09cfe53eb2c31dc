"""``mlx:`` for real: captured, paired, injected, and planted bugs named."""

from __future__ import annotations

from typing import Any

import pytest

from tensordiff.capture.provenance import decode_tokens
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError
from tests.capture_engines.checkpoints import scaled_norm, swapped
from tests.capture_engines.running import (
    STEPS,
    Shelf,
    compared,
    culprit,
    injected_layers,
    orphan_outputs,
    wrong_by_themselves,
)
from tests.cli.command import Call

KIND = "mlx"
NAMES = ("llama", "qwen3", "phi3")


@pytest.mark.parametrize("name", NAMES)
def test_a_right_checkpoint_agrees_in_every_layer_and_step(shelf: Shelf, name: str) -> None:
    source, reference = shelf.source(KIND, name), shelf.reference(name)
    session = compared(reference, shelf.capture(source), shelf.injected(source, reference))
    outcome = session.outcome(list(session.comparer.rows(session.pairs)))
    assert (outcome.verdict, outcome.culprit) == ("agrees", None)
    # transformers turns by a function, which is no layer
    assert orphan_outputs(session) == {f"model.model.layers.{layer}.self_attn.rope" for layer in (0, 1)}
    paired = {(pair.name, pair.reference.step) for pair in session.pairs}
    assert {("lm_head", step) for step in range(STEPS)} | {("layers.1", step) for step in range(STEPS)} <= paired
    assert wrong_by_themselves(session) == set()
    injection = session.third_dumps.injected
    assert injection is not None
    layers = injected_layers(injection)
    assert [name for name, layer in layers.items() if not layer["isolated"] and ".rope" not in name] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_norm_that_is_scaled_is_named(shelf: Shelf, name: str) -> None:
    source, reference = shelf.source(KIND, name, scaled_norm), shelf.reference(name)
    session = compared(reference, shelf.capture(source), shelf.injected(source, reference))
    assert culprit(session) == "layers.1.post_attention_layernorm"
    assert wrong_by_themselves(session) == {"layers.1.post_attention_layernorm"}


@pytest.mark.parametrize("name", NAMES)
def test_weights_that_are_swapped_are_named(shelf: Shelf, name: str) -> None:
    source, reference = shelf.source(KIND, name, swapped), shelf.reference(name)
    session = compared(reference, shelf.capture(source), shelf.injected(source, reference))
    parts = ("gate_up_proj",) if name == "phi3" else ("gate_proj", "up_proj")
    assert culprit(session) == f"layers.0.mlp.{parts[0]}"
    assert wrong_by_themselves(session) == {f"layers.0.mlp.{part}" for part in parts}


@pytest.mark.parametrize("name", NAMES)
def test_another_rope_theta_is_named(shelf: Shelf, name: str) -> None:
    source, reference = shelf.source(KIND, name), shelf.reference(name)
    wrong: dict[str, Any] = {"config": {"rope_theta": 3000.0}}
    session = compared(reference, shelf.capture(source, **wrong), shelf.injected(source, reference, **wrong))
    assert culprit(session) == "layers.0.self_attn"
    assert wrong_by_themselves(session) == set()


@pytest.mark.parametrize(("at", "isolated"), [("layers.1.self_attn", STEPS), ("..layers.1.mlp", 21 * STEPS)])
def test_injection_reaches_what_it_is_asked_for(shelf: Shelf, at: str, isolated: int) -> None:
    dump = open_dump(shelf.injected(shelf.source(KIND, "llama"), shelf.reference("llama"), at))
    assert sum(layer["isolated"] for layer in injected_layers(dump).values()) == isolated


def test_later_steps_are_given_the_tokens_of_the_reference(shelf: Shelf) -> None:
    source, forced = shelf.source(KIND, "llama"), (9, 8, 7)
    reference = shelf.reference("llama", decode_ids=forced)
    candidate = shelf.capture(source, decode_ids=forced)
    assert decode_tokens(open_dump(candidate), STEPS) == forced
    assert culprit(compared(reference, candidate)) is None
    assert decode_tokens(open_dump(shelf.injected(source, reference, "once")), STEPS) == forced


def test_bfloat16_has_no_false_culprit(shelf: Shelf) -> None:
    reference = shelf.reference("llama", dtype="bfloat16")
    candidate = open_dump(shelf.capture(shelf.source(KIND, "llama"), dtype="bfloat16"))
    assert {entry.spec.dtype.name for entry in candidate.entries if not entry.is_input} == {"bfloat16"}
    assert culprit(compared(reference, candidate.path)) is None


def test_fewer_layers(shelf: Shelf) -> None:
    reference = shelf.reference("llama", num_hidden_layers=1)
    candidate = shelf.capture(shelf.source(KIND, "llama"), num_hidden_layers=1)
    assert culprit(compared(reference, candidate)) is None
    assert not any(".layers.1" in entry.layer for entry in open_dump(candidate).entries)


def test_a_search_by_reruns_names_the_layer(shelf: Shelf, call: Call) -> None:
    candidate = shelf.capture(shelf.source(KIND, "llama", scaled_norm))
    status, out, _ = call("bisect", shelf.reference("llama"), candidate, "--rerun")
    assert (status, "first bad: layers.1.post_attention_layernorm\n" in out) == (1, True)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ops": "model.lm_head"}, "--ops is not for mlx: sources; what MLX computes within a module cannot be seen"),
        ({"config": {"rope_parameters.rope_theta": 1.0}}, "mlx-lm does not read rope_parameters for this model"),
        ({"device": "cuda:0"}, "--device cuda:0: MLX has cpu and gpu"),
        ({"dtype": "float3"}, "--dtype float3: MLX knows no such type"),
        ({"num_hidden_layers": 5}, "--num-hidden-layers 5: the model has 2"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_sentence(shelf: Shelf, settings: dict[str, object], said: str) -> None:
    with pytest.raises(CaptureError, match=r"\S") as raised:
        shelf.capture(shelf.source(KIND, "llama"), **settings)
    assert said in str(raised.value)
