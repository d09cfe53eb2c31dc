"""Options of ``hf:`` sources, on tiny random checkpoints: each does what its help says, or is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensordiff.capture.events import Note
from tensordiff.capture.settings import Settings
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError
from tests.capture.models import Make, Ran, run_here

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

_SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
_HYBRID = _SMALL | {
    "num_hidden_layers": 2, "num_key_value_heads": 2, "vocab_size": 160, "head_dim": 8, "linear_num_value_heads": 4,
    "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 4,
    "layer_types": ["linear_attention", "full_attention"], "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}  # fmt: skip
_UNEVEN = {
    "vocab_size": 160, "d_model": 32, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_source_positions": 20,
    "max_target_positions": 30, "num_mel_bins": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip


def saved(folder: Path, model: str, config: Any) -> str:
    """A source of a random model."""
    getattr(transformers, model)(config).save_pretrained(folder / model)
    return f"hf:{folder / model}"


def clip(folder: Path) -> str:
    text = _SMALL | {"num_hidden_layers": 2, "vocab_size": 160, "max_position_embeddings": 32}
    vision = _SMALL | {"num_hidden_layers": 3, "image_size": 32, "patch_size": 8}
    return saved(folder, "CLIPModel", transformers.CLIPConfig(text_config=text, vision_config=vision))


def values(path: Path) -> dict[tuple[str, int], Any]:
    return {(entry.name, entry.step): entry.read() for entry in open_dump(path).entries}


def layers(path: Path) -> set[str]:
    return {entry.layer for entry in open_dump(path).entries}


def notes(ran: Ran) -> str:
    return "\n".join(event.text for event in ran.events if isinstance(event, Note))


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_weights_that_are_rounded_already_change_nothing(dtype: str | None, tiny: Make, tmp_path: Path) -> None:
    """Nor does what is computed from them: rotary frequencies are buffers, not weights."""
    import torch

    model = transformers.LlamaForCausalLM.from_pretrained(tiny("llama"))
    for weight in model.parameters():
        weight.data = weight.data.half().float()
    model.save_pretrained(tmp_path / "m")
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    source = f"hf:{tmp_path / 'm'}"
    run_here(source, tmp_path / "plain", dtype=dtype)
    run_here(source, tmp_path / "rounded", dtype=dtype, weights_dtype="float16")
    plain, rounded = values(tmp_path / "plain"), values(tmp_path / "rounded")
    assert plain.keys() == rounded.keys()
    assert [name for name, value in plain.items() if not np.array_equal(value, rounded[name])] == []
    assert open_dump(tmp_path / "rounded").facts["dtype"] == (dtype or "float32")


def test_weights_are_rounded_and_it_is_computed_as_before(tiny: Make, tmp_path: Path) -> None:
    source = f"hf:{tiny('llama')}"
    run_here(source, tmp_path / "plain")
    run_here(source, tmp_path / "rounded", weights_dtype="bfloat16")
    plain, rounded = (values(tmp_path / name)["model-output_logits", 0] for name in ("plain", "rounded"))
    assert plain.dtype == rounded.dtype == np.float32
    assert 0 < np.linalg.norm(plain - rounded) / np.linalg.norm(plain) < 0.05


@pytest.mark.parametrize("option", ["dtype", "weights_dtype"])
def test_a_type_that_torch_does_not_know_is_named(option: str, tiny: Make, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=f"^--{option.replace('_', '-')} float99: torch knows no such type"):
        run_here(f"hf:{tiny('llama')}", tmp_path / "d", Settings.from_json({option: "float99"}))


def test_weights_that_are_missing_are_said_and_the_same_each_time(tiny: Make, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(tiny("bert"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertForSequenceClassification"]}))
    first, again, other = (
        run_here(f"hf:{folder}", tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    said = "2 weights are not in the checkpoint, and random, from the seed 1: classifier.bias, classifier.weight"
    assert said in notes(first)
    logits = [values(ran.path)["model-output_logits", 0].tolist() for ran in (first, again, other)]
    assert logits[0] == logits[1] != logits[2]


def test_a_whole_checkpoint_is_not_said_to_lack_anything(tiny: Make, tmp_path: Path) -> None:
    assert "not in the checkpoint" not in notes(run_here(f"hf:{tiny('gpt2')}", tmp_path / "d"))


def test_no_layer_is_added_to_a_part_that_has_fewer(tmp_path: Path) -> None:
    source = saved(tmp_path, "WhisperForConditionalGeneration", transformers.WhisperConfig(**_UNEVEN))
    ran = run_here(source, tmp_path / "d", num_hidden_layers=3)
    assert "not in the checkpoint" not in notes(ran)
    found = layers(tmp_path / "d")
    assert {"model.model.encoder.layers.2", "model.model.decoder.layers.1"} <= found
    assert "model.model.decoder.layers.2" not in found
    run_here(source, tmp_path / "one", num_hidden_layers=1)
    assert not any("layers.1" in layer for layer in layers(tmp_path / "one"))
    with pytest.raises(CaptureError, match="--num-hidden-layers 4: the model has 3"):
        run_here(source, tmp_path / "no", num_hidden_layers=4)


def test_both_sides_of_clip_are_given_something(tmp_path: Path) -> None:
    source = clip(tmp_path)
    ran = run_here(source, tmp_path / "d", num_hidden_layers=3)
    assert "no pixel_values were given, so they are noise of shape [1, 3, 32, 32]" in notes(ran)
    found = layers(tmp_path / "d")
    assert {"model.vision_model.encoder.layers.2", "model.text_model.encoder.layers.1"} <= found
    ids = run_here(source, tmp_path / "ids", input_ids=(5, 6))
    assert open_dump(ids.path).facts["token_ids"] == [5, 6]
    assert "model-output_logits_per_image" in {entry.name for entry in open_dump(ids.path).entries}


def test_layers_of_linear_attention_alone_are_refused(tmp_path: Path) -> None:
    source = saved(tmp_path, "Qwen3NextForCausalLM", transformers.Qwen3NextConfig(**_HYBRID))
    with pytest.raises(CaptureError, match="--num-hidden-layers 1: the layers kept are all of linear attention"):
        run_here(source, tmp_path / "no", num_hidden_layers=1)
    assert run_here(source, tmp_path / "d", num_hidden_layers=2).done.entries > 60


def test_a_config_that_counts_no_layers_cannot_be_shortened(tmp_path: Path) -> None:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1])
    source = saved(tmp_path, "ResNetForImageClassification", config)
    with pytest.raises(CaptureError, match="--num-hidden-layers 1: the config does not say how many layers there are"):
        run_here(source, tmp_path / "d", num_hidden_layers=1)


def test_mamba_goes_on_with_its_state(tmp_path: Path) -> None:
    config = transformers.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=160, state_size=4)
    source = saved(tmp_path, "MambaForCausalLM", config)
    run_here(source, tmp_path / "d", steps=3, input_ids=(5, 6, 7))
    found = values(tmp_path / "d")
    chosen = [int(found["model-output_logits", step][0, -1].argmax()) for step in (0, 1)]
    run_here(source, tmp_path / "whole", input_ids=(5, 6, 7, *chosen))
    whole = values(tmp_path / "whole")["model-output_logits", 0]
    np.testing.assert_allclose(found["model-output_logits", 2][0, -1], whole[0, -1], atol=1e-5)


@pytest.mark.parametrize(
    ("model", "given", "sentence"),
    [
        ("llama", {"prompt": "a", "input_ids": (1, 2)}, "--input-ids and --prompt: give one of them"),
        ("llama", {"prompt": "a", "inputs": "x.safetensors"}, "--inputs and --prompt: give one of them"),
        ("llama", {"input_ids": (1, 2), "image": "x.png"}, "--input-ids and --image: give one of them"),
        ("vit", {"prompt": "a"}, "--prompt: ViTForImageClassification reads no text"),
    ],
)
def test_a_question_that_would_not_be_asked_is_refused(
    model: str, given: dict[str, Any], sentence: str, tiny: Make, tmp_path: Path
) -> None:
    with pytest.raises(CaptureError, match=f"^{sentence}"):
        run_here(f"hf:{tiny(model)}", tmp_path / "d", **given)
    assert not (tmp_path / "d").exists()
