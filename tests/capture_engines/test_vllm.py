"""What ``vllm:`` has by itself: it keeps its model for several runs, and on a processor packs the weights it loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensordiff.capture.job import REPLAY, Job, parse_source
from tensordiff.capture.runner import Run
from tensordiff.capture.settings import Settings
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError
from tensordiff.weights.comparison import compare_weights
from tests.capture_engines.checkpoints import FORCED, IDS, swapped
from tests.capture_engines.running import STEPS, Shelf, compared, culprit, injected_layers

KIND = "vllm"


@pytest.mark.parametrize(
    ("at", "isolated"),
    [
        ("once", 24 * STEPS),
        ("model.model.layers.1.self_attn", STEPS),
        ("..layers.1.mlp", 19 * STEPS),
        (r"layers\.0\.mlp\.", 3 * STEPS),
    ],
)
def test_injection_reaches_what_it_is_asked_for(shelf: Shelf, at: str, isolated: int) -> None:
    dump = open_dump(shelf.injected(shelf.source(KIND, "llama"), shelf.reference("llama"), at))
    assert sum(layer["isolated"] for layer in injected_layers(dump).values()) == isolated


def test_the_operations_of_a_layer_are_on_the_references_inputs(shelf: Shelf) -> None:
    source, reference = shelf.source(KIND, "llama"), shelf.reference("llama")
    dump = open_dump(shelf.injected(source, reference, ops="layers.0.mlp", steps=1))
    assert {"fn_01_cpu_unquantized_gemm", "op_04_aten.silu"} <= {e.layer.rpartition("/")[2] for e in dump.entries}
    assert injected_layers(dump)["model.model.layers.0.mlp"]["isolated"]


def test_its_weights_are_those_of_the_checkpoint_and_its_model_is_named(shelf: Shelf) -> None:
    right, wrong = (open_dump(shelf.capture(shelf.source(KIND, "llama", bug), weights=True)) for bug in (None, swapped))
    outcome = compare_weights(open_dump(shelf.checkpoint("llama")), right)
    assert (outcome.compared, outcome.findings) == (15, ())
    about: Any = right.facts["model"]
    assert (about["class"], about["file"]) == ("LlamaForCausalLM", "vllm/model_executor/models/llama.py")
    assert about["parameters"] == sum(entry.spec.size for entry in right.parameters)
    whole = next(entry for entry in right.entries if entry.layer == "model")
    assert whole.origin is not None and whole.origin.module_class == "LlamaForCausalLM"
    assert right.facts["weights_hash"] != wrong.facts["weights_hash"]


def test_fewer_layers(shelf: Shelf) -> None:
    reference = shelf.reference("llama", num_hidden_layers=1)
    candidate = shelf.capture(shelf.source(KIND, "llama"), num_hidden_layers=1)
    assert culprit(compared(reference, candidate)) is None
    assert not any(".layers.1" in entry.layer for entry in open_dump(candidate).entries)


def test_a_longer_prompt_than_the_model_was_loaded_for_is_run_all_the_same(shelf: Shelf) -> None:
    source, long = shelf.source(KIND, "llama"), IDS * 20
    shelf.capture(source, decode_ids=FORCED)
    reference, candidate = shelf.reference("llama", input_ids=long), shelf.capture(source, input_ids=long)
    assert culprit(compared(reference, candidate)) is None


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("llama", {"weights_dtype": "bfloat16"}, "--weights-dtype is not for vllm: sources"),
        ("llama", {"image": "cat.png"}, "--image is not for vllm: sources; give --prompt or --input-ids"),
        ("llama", {"device": "mps"}, "--device mps: vLLM runs on the device it was built for"),
        ("llama", {"config": {"nothing": 1}}, "--config nothing: "),
        ("llama", {"input_ids": (5, 1000)}, "the token 1000 is none of the model's 320"),
        ("llama", {"decode_ids": (-3,)}, "the token -3 is none of the model's 320"),
        ("minilm", {"steps": 2}, "--steps: BertEmbeddingModel gives no logits to go on from; capture one step"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_sentence(
    shelf: Shelf, name: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(CaptureError, match=r"\S") as raised:
        shelf.capture(shelf.source(KIND, name), **settings)
    assert said in str(raised.value)


def test_a_folder_without_a_model_is_not_said_to_lack_a_tokenizer(shelf: Shelf, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"^vllm:\S+: vLLM could not load it .*; give a folder with config.json"):
        shelf.capture(f"{KIND}:{tmp_path}", input_ids=None)


def test_a_layer_by_itself_is_refused_with_what_to_do_instead(shelf: Shelf) -> None:
    source, dump = parse_source(shelf.source(KIND, "llama")), shelf.reference("llama")
    assert source is not None
    job = Job(source, Settings(), str(shelf.folder / "replayed"), task=REPLAY, more={"dump": str(dump)})
    with pytest.raises(CaptureError, match=r"cannot be run by itself; give it the .* --inject DUMP --inject-at LAYER"):
        Run(job, shelf.child).result()
