"""``llamacpp:`` for real: captured, paired, injected, and planted bugs named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensordiff.capture.interpreter import interpreter
from tensordiff.capture.provenance import decode_tokens
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError
from tests.capture_engines.checkpoints import IDS, scaled_norm, swapped
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

KIND = "llamacpp"
NAMES = ("llama", "qwen3", "phi3")


@pytest.mark.parametrize("name", NAMES)
def test_a_right_file_agrees_in_every_layer_and_step(shelf: Shelf, name: str) -> None:
    source, reference = shelf.source(KIND, name), shelf.reference(name)
    session = compared(reference, shelf.capture(source), shelf.injected(source, reference))
    outcome = session.outcome(list(session.comparer.rows(session.pairs)))
    assert (outcome.verdict, outcome.culprit, orphan_outputs(session)) == ("agrees", None, set())
    paired = {(pair.name, pair.reference.step) for pair in session.pairs}
    assert {("lm_head", step) for step in range(STEPS)} | {("layers.1", step) for step in range(STEPS)} <= paired
    assert wrong_by_themselves(session) == set()
    injection = session.third_dumps.injected
    assert injection is not None
    layers = injected_layers(injection).values()
    assert layers and all(layer["isolated"] for layer in layers)


@pytest.mark.parametrize("name", NAMES)
def test_a_norm_that_is_scaled_is_named(shelf: Shelf, name: str) -> None:
    source, reference = shelf.source(KIND, name, scaled_norm), shelf.reference(name)
    session = compared(reference, shelf.capture(source), shelf.injected(source, reference))
    assert culprit(session) == "layers.1.post_attention_layernorm"
    assert wrong_by_themselves(session) == {"layers.1.post_attention_layernorm"}
    assert culprit(compared(reference, shelf.capture(source))) == "layers.1.post_attention_layernorm"


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
    wrong: dict[str, Any] = {"config": {f"{name}.rope.freq_base": 3000.0}}
    session = compared(reference, shelf.capture(source, **wrong), shelf.injected(source, reference, **wrong))
    assert culprit(session) == "layers.0.self_attn"
    assert wrong_by_themselves(session) == set()
    assert culprit(compared(reference, shelf.capture(source, **wrong))) == "layers.0.self_attn"


@pytest.mark.parametrize(
    ("at", "isolated"),
    [
        ("once", 28 * STEPS),
        ("model.blk.1.attn", STEPS),
        ("..model.blk.1.ffn", 21 * STEPS),
        (r"blk\.0\.attn\.", 4 * STEPS),
    ],
)
def test_injection_reaches_what_it_is_asked_for(shelf: Shelf, at: str, isolated: int) -> None:
    reference = shelf.reference("llama")
    dump = open_dump(shelf.injected(shelf.source(KIND, "llama"), reference, at))
    layers = injected_layers(dump).values()
    assert sum(layer["isolated"] for layer in layers) == isolated


def test_what_comes_after_a_layer_made_right_heals(shelf: Shelf) -> None:
    source, reference = shelf.source(KIND, "llama", scaled_norm), shelf.reference("llama")
    before = compared(reference, shelf.injected(source, reference, "..model.blk.1.ffn_norm"))
    assert culprit(before) == "layers.1.post_attention_layernorm"
    after = compared(reference, shelf.injected(source, reference, "..model.blk.1.ffn"))
    assert culprit(after) is None


def test_later_steps_are_given_the_tokens_of_the_reference(shelf: Shelf) -> None:
    source, forced = shelf.source(KIND, "llama"), (9, 8, 7)
    reference = shelf.reference("llama", decode_ids=forced)
    candidate = shelf.capture(source, decode_ids=forced)
    assert decode_tokens(open_dump(candidate), STEPS) == forced
    assert culprit(compared(reference, candidate)) is None
    injected = open_dump(shelf.injected(source, reference, "once"))
    assert decode_tokens(injected, STEPS) == forced


def test_the_nodes_of_a_layer_are_its_operations(shelf: Shelf) -> None:
    reference, source = shelf.reference("llama"), shelf.source(KIND, "llama")
    dump = open_dump(shelf.injected(source, reference, ops="layers.0.self_attn", steps=1))
    names = [entry.layer.partition("/")[2] for entry in dump.entries if not entry.is_input]
    assert [name.partition("_")[2].partition("_")[2] for name in names if name] == [
        "MUL_MAT", "ROPE", "MUL_MAT", "MUL_MAT", "ROPE", "SET_ROWS", "SET_ROWS", "MUL_MAT", "SOFT_MAX", "MUL_MAT",
        "CONT", "MUL_MAT",
    ]  # fmt: skip
    assert injected_layers(dump)["model.blk.0.attn"]["isolated"]


def test_from_the_command_line(shelf: Shelf, call: Call, tmp_path: Path) -> None:
    source, model = shelf.source(KIND, "llama", scaled_norm), shelf.checkpoint("llama")
    ids = ",".join(map(str, IDS))
    status, _, said = call("verify", f"hf:{model}", source, "-o", tmp_path / "v", "--input-ids", ids, "--steps", "3")
    assert status == 1
    assert f"{source}: runs in {interpreter(KIND)}" in said
    assert "layers.1.post_attention_layernorm" in (tmp_path / "v" / "summary.md").read_text("utf-8")
    status, out, _ = call("bisect", shelf.reference("llama"), shelf.capture(source), "--rerun")
    assert (status, "first bad: layers.1.post_attention_layernorm\n" in out) == (1, True)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dtype": "bfloat16"}, "--dtype bfloat16: llama.cpp computes in float32"),
        ({"device": "cuda"}, "--device cuda: llamacpp: sources run on the cpu"),
        ({"num_hidden_layers": 1}, "--num-hidden-layers is not for llamacpp: sources; that was decided when"),
        ({"config": {"llama.nothing": 1}}, "--config llama.nothing: the file has no such key"),
        ({"input_ids": (5, 1000)}, "the token 1000 is none of the model's 320"),
        ({"input_ids": None}, "has no vocabulary; give --input-ids 1,2,3"),
        ({"attn_implementation": "flash_attention_2"}, "compute attention plainly"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_sentence(shelf: Shelf, settings: dict[str, object], said: str) -> None:
    with pytest.raises(CaptureError, match=r"\S") as raised:
        shelf.capture(shelf.source(KIND, "llama"), **settings)
    assert said in str(raised.value)


def test_a_file_that_is_no_model_is_refused(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(CaptureError, match=r"llama\.cpp could not load it"):
        shelf.capture(f"{KIND}:{tmp_path / 'no.gguf'}")
