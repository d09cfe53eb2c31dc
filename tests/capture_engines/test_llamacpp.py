"""What ``llamacpp:`` has by itself: every layer can be isolated, and its nodes are its operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensordiff.capture.interpreter import interpreter
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError
from tensordiff.weights.comparison import compare_weights
from tests.capture_engines.checkpoints import IDS, make_gguf, scaled_norm, swapped
from tests.capture_engines.running import (
    STEPS,
    Shelf,
    compared,
    culprit,
    injected_layers,
)

KIND = "llamacpp"


@pytest.mark.parametrize(
    ("at", "isolated"),
    [
        ("once", 28 * STEPS),
        ("model.blk.1.attn", STEPS),
        ("..model.blk.1.ffn", 21 * STEPS),
        (r"blk\.0\.attn\.", 4 * STEPS),
        (r"layers\.0\.self_attn\.", 4 * STEPS),
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


def test_the_nodes_of_a_layer_are_its_operations(shelf: Shelf) -> None:
    reference, source = shelf.reference("llama"), shelf.source(KIND, "llama")
    dump = open_dump(shelf.injected(source, reference, ops="layers.0.self_attn", steps=1))
    names = [entry.layer.partition("/")[2] for entry in dump.entries if not entry.is_input]
    assert [name.partition("_")[2].partition("_")[2] for name in names if name] == [
        "MUL_MAT", "ROPE", "MUL_MAT", "MUL_MAT", "ROPE", "SET_ROWS", "SET_ROWS", "MUL_MAT", "SOFT_MAX", "MUL_MAT",
        "CONT", "MUL_MAT",
    ]  # fmt: skip
    assert injected_layers(dump)["model.blk.0.attn"]["isolated"]
    queries = next(e for e in dump.entries if e.layer == "model.blk.0.attn/op_00_MUL_MAT" and not e.is_input).read()
    theirs = next(e for e in open_dump(reference).entries if e.name == "model.model.layers.0.self_attn.q_proj-output")
    assert np.allclose(queries, theirs.read()[0], atol=1e-5)  # in the order of Hugging Face, as the layer itself


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3", "gemma3"])
def test_operations_in_another_order_than_torch_has_them_blame_nobody(shelf: Shelf, name: str) -> None:
    reference = shelf.reference(name)
    layer: dict[str, Any] = {"ops": "layers.0.self_attn", "steps": 1}
    ours = shelf.reference(name, **layer)
    right = compared(ours, shelf.injected(shelf.source(KIND, name), reference, **layer))
    assert culprit(right) is None
    last = max(pair.candidate.layer for pair in right.pairs)
    assert last.endswith("MUL_MAT") and len(right.pairs) >= 9, "up to the last product"
    wrong = {**layer, "config": {f"{name}.rope.freq_base{'_swa' if name == 'gemma3' else ''}": 3000}}
    blamed = culprit(compared(ours, shelf.injected(shelf.source(KIND, name), reference, **wrong)))
    assert blamed is not None and "aten.mm" not in blamed, "not the projections"


def test_the_operation_that_is_wrong_is_named(shelf: Shelf) -> None:
    layer: dict[str, Any] = {"ops": "layers.1.post_attention_layernorm", "steps": 1}
    reference = shelf.reference("llama")
    wrong = shelf.injected(shelf.source(KIND, "llama", scaled_norm), reference, **layer)
    session = compared(shelf.reference("llama", **layer), wrong)
    outcome = session.outcome(list(session.comparer.rows(session.pairs)))
    assert outcome.verdict == "diverges" and outcome.culprit is not None, outcome.reasons
    assert outcome.culprit.pair.reference.layer.endswith("op_05_aten.mul.Tensor")
    assert outcome.culprit.pair.candidate.layer == "model.blk.1.ffn_norm/op_01_MUL"


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3", "gemma3"])
@pytest.mark.parametrize("tokens", [4, 5], ids=["as many as heads", "more than heads"])
def test_operations_of_a_right_layer_agree(shelf: Shelf, name: str, tokens: int) -> None:
    asked: dict[str, Any] = {"input_ids": IDS[:tokens], "steps": 1}
    reference, layer = shelf.reference(name, **asked), {**asked, "ops": "layers.0.self_attn"}
    found = compared(shelf.reference(name, **layer), shelf.injected(shelf.source(KIND, name), reference, **layer))
    outcome = found.outcome(list(found.comparer.rows(found.pairs)))
    assert (outcome.verdict, outcome.culprit) == ("agrees", None), outcome.reasons


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dtype": "bfloat16"}, "--dtype bfloat16: llama.cpp computes in float32"),
        ({"device": "cuda"}, "--device cuda: llamacpp: sources run on the cpu"),
        ({"num_hidden_layers": 1}, "--num-hidden-layers is not for llamacpp: sources; that was decided when"),
        ({"config": {"llama.nothing": 1}}, "--config llama.nothing: the file has no such key"),
        ({"config": {"llama.block_count": 1.5}}, "--config llama.block_count: is a whole number in the file"),
        ({"config": {"llama.block_count": 1}}, "the weights may not fit --config llama.block_count=1: leave it out"),
        ({"config": {"llama.rope.freq_base": "wide"}}, "--config llama.rope.freq_base: is a number in the file"),
        ({"input_ids": (5, 1000)}, "the token 1000 is none of the model's 320"),
        ({"decode_ids": (4000,)}, "the token 4000 is none of the model's 320"),
        ({"input_ids": None}, "has no vocabulary; give --input-ids 1,2,3"),
        ({"attn_implementation": "flash_attention_2"}, "compute attention plainly"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_sentence(shelf: Shelf, settings: dict[str, object], said: str) -> None:
    with pytest.raises(CaptureError, match=r"\S") as raised:
        shelf.capture(shelf.source(KIND, "llama"), **settings)
    assert said in str(raised.value)


def test_a_whole_number_is_taken_where_the_file_has_a_real_one(shelf: Shelf) -> None:
    for theta in (3000, 3000.0):  # llama.cpp itself passes over the first without a word
        candidate = shelf.capture(shelf.source(KIND, "llama"), config={"llama.rope.freq_base": theta})
        assert culprit(compared(shelf.reference("llama"), candidate)) == "layers.0.self_attn"


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_what_llama_cpp_quantized_is_explained_and_swapped_weights_are_not(shelf: Shelf, kind: str) -> None:
    right = open_dump(shelf.checkpoint("wide"))
    for bug, wrong in ((None, set()), (swapped, {f"layers.0.mlp.{part}_proj.weight" for part in ("gate", "up")})):
        file = make_gguf(shelf.checkpoint("wide", bug), Path(interpreter(KIND)), kind)
        outcome = compare_weights(right, open_dump(file))
        assert (outcome.compared, {row.name for row in outcome.findings}) == (21, wrong)


def test_a_file_that_is_no_model_is_refused(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(CaptureError, match=r"llama\.cpp could not load it \(.*gguf.*\); is it a whole"):
        shelf.capture(f"{KIND}:{tmp_path / 'no.gguf'}")
