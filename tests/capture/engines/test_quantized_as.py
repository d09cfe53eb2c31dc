"""``--quantized-as``: the reference's own code, run with the weights of a quantized candidate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tensordiff.capture.events import Note
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError
from tests.capture.models import Make, run_here
from tests.weights.making import Weights, mlx_quantized

pytest.importorskip("torch")
pytest.importorskip("transformers")

IDS = (3, 4, 5, 9)


def quantized(model: Path, folder: Path, **changed: Any) -> Path:
    """A model's checkpoint in 8 bits, with some parameters changed before."""
    weights: Weights = dict(load_file(model / "model.safetensors")) | changed
    folder.mkdir()
    (folder / "config.json").write_text('{"quantization": {"bits": 8, "group_size": 32}}')
    save_file({name: np.ascontiguousarray(array) for name, array in mlx_quantized(weights, 8, 32).items()},
              folder / "model.safetensors")  # fmt: skip
    return folder


def logits(folder: Path) -> Any:
    return next(entry.read() for entry in open_dump(folder).entries if entry.port == "output_logits")


def test_a_model_is_given_the_weights_that_quantization_explains(tiny: Make, tmp_path: Path) -> None:
    model = tiny("llama")
    candidate = quantized(model, tmp_path / "q")
    plain = run_here(f"hf:{model}", tmp_path / "plain", input_ids=IDS)
    ran = run_here(f"hf:{model}", tmp_path / "as", input_ids=IDS, quantized_as=str(candidate), weights=True)
    error = np.linalg.norm(logits(ran.path) - logits(plain.path)) / np.linalg.norm(logits(plain.path))
    assert 1e-5 < error < 0.1
    said: Any = open_dump(ran.path).facts["quantized_as"]
    assert (said["weights"], said["left"], said["rounds_activations"]) == (
        "8-bit weights (MLX 8 bits in groups of 32)", [], False,
    )  # fmt: skip
    assert "model.layers.0.self_attn.q_proj" in said["layers"]
    notes = [event.text for event in ran.events if isinstance(event, Note)]
    assert f"runs with the 8-bit weights (MLX 8 bits in groups of 32) of {candidate}" in notes
    held = {entry.layer: entry.read() for entry in open_dump(ran.path).parameters}
    own = load_file(model / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
    assert 0 < np.abs(held["model.layers.0.self_attn.q_proj.weight"] - own).max() < np.abs(own).max() / 100


def test_a_weight_that_is_another_is_left_as_it_is(tiny: Make, tmp_path: Path) -> None:
    model, name = tiny("llama"), "model.layers.0.mlp.up_proj.weight"
    own = load_file(model / "model.safetensors")[name]
    candidate = quantized(model, tmp_path / "q", **{name: own[::-1] * np.float32(1.5)})
    ran = run_here(f"hf:{model}", tmp_path / "as", input_ids=IDS, quantized_as=str(candidate), weights=True)
    said: Any = open_dump(ran.path).facts["quantized_as"]
    assert said["left"] == [name]
    held = {entry.layer: entry.read() for entry in open_dump(ran.path).parameters}
    assert np.array_equal(held[name], own)


def test_a_candidate_that_is_not_quantized_is_refused(tiny: Make, tmp_path: Path) -> None:
    model = tiny("llama")
    with pytest.raises(CaptureError, match="holds no quantized weights; give a checkpoint or a GGUF file that does"):
        run_here(f"hf:{model}", tmp_path / "as", input_ids=IDS, quantized_as=str(model))
