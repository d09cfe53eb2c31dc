"""Tiny random checkpoints that every engine can run, right ones and ones with a planted bug."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import processes

IDS = (5, 17, 42, 100, 7, 200, 33, 64, 91)
_COMMON = {
    "vocab_size": 320, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 0, "eos_token_id": 1,
    "pad_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip
_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _COMMON | {"head_dim": 32}),
    "qwen3": ("Qwen3Config", _COMMON | {"head_dim": 32}),
    "phi3": ("Phi3Config", _COMMON | {"original_max_position_embeddings": 256}),
    "gemma3": ("Gemma3TextConfig", _COMMON | {"head_dim": 32, "tie_word_embeddings": True, "sliding_window": 128,
                                              "query_pre_attn_scalar": 32}),
    "gpt2": ("GPT2Config", {"vocab_size": 320, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 256,
                            "bos_token_id": 0, "eos_token_id": 1}),
}  # fmt: skip
_CONVERT = Path(__file__).with_name("convert_gguf.py")

Bug = Callable[[dict[str, Any]], None]
"""Changes the weights of a checkpoint, by name."""


def make_checkpoint(name: str, folder: Path, bug: Bug | None = None) -> Path:
    """A checkpoint whose weights are large enough for every part of it to matter."""
    import torch
    import transformers

    kind, options = _CONFIGS[name]
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**options)).float()
    random = torch.Generator().manual_seed(len(name))
    for key, weight in model.named_parameters():
        is_norm = weight.dim() == 1 and ("norm" in key or "ln_" in key)
        scale, centre = (0.08, 0.0) if weight.dim() > 1 else (0.1, float(is_norm and name != "gemma3"))
        weight.data = torch.randn(weight.shape, generator=random) * scale + centre
    if bug is not None:
        bug({key: weight.data for key, weight in model.named_parameters()})
    model.save_pretrained(folder)
    return folder


def scaled_norm(weights: dict[str, Any]) -> None:
    """The second block's norm before its feed-forward part is too large."""
    weights["model.layers.1.post_attention_layernorm.weight"] *= 1.25


def swapped(weights: dict[str, Any]) -> None:
    """The first block has its gate in the place of up, and the other way round."""
    both = weights.get("model.layers.0.mlp.gate_up_proj.weight")
    if both is not None:
        both.copy_(both.roll(len(both) // 2, 0))
        return
    gate, up = (weights[f"model.layers.0.mlp.{part}_proj.weight"] for part in ("gate", "up"))
    kept = gate.clone()
    gate.copy_(up)
    up.copy_(kept)


def make_gguf(checkpoint: Path, python: Path) -> Path:
    """The checkpoint as a GGUF file, by the package gguf of llama.cpp's environment."""
    path = checkpoint.with_suffix(".gguf")
    ran = processes.run([str(python), str(_CONVERT), str(checkpoint), str(path)])
    assert ran.returncode == 0, ran.stderr
    return path
