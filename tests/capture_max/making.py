"""Tiny checkpoints with random weights and a real tokenizer, and checkpoints with a bug planted in them.

Norms and biases are moved off 1 and 0, so that leaving one out shows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

_TEXT = "The meaning of life is not a single enumerator. The quick brown fox jumps over the lazy dog, hello world"
_VOCABULARY = 320
_SIZES = {
    "vocab_size": _VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 512, "pad_token_id": 1,
}  # fmt: skip
_DECODER = {
    **_SIZES, "num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False,
}  # fmt: skip


def make_model(name: str, folder: Path) -> Path:
    """A checkpoint: ``llama``, ``qwen3``, ``phi3``, ``bert`` or ``gemma3``."""
    import torch

    torch.manual_seed(0)
    made = _models()[name]().float().eval()
    generator = torch.Generator().manual_seed(1)
    for key, weight in made.named_parameters():
        if weight.ndim == 1 and ("norm" in key.lower() or "bias" in key):
            weight.data += 0.1 * torch.randn(weight.shape, generator=generator)
    made.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    if name == "gemma3":  # MAX reads this key and not layer_types
        _edit_config(folder, _sliding_window_pattern=2)
    return folder


def _models() -> dict[str, Callable[[], Any]]:
    import transformers as hf

    sliding = ["sliding_attention", "full_attention"]
    return {
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**_DECODER, head_dim=16)),
        "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**_DECODER, head_dim=16)),
        "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**_DECODER)),
        "bert": lambda: hf.BertModel(hf.BertConfig(**{**_SIZES, "max_position_embeddings": 128})),
        "gemma3": lambda: hf.Gemma3ForCausalLM(
            hf.Gemma3TextConfig(
                **{**_DECODER, "tie_word_embeddings": True}, head_dim=16, query_pre_attn_scalar=16,
                sliding_window=256, layer_types=sliding,
            )
        ),
    }  # fmt: skip


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-untyped]
    from transformers import PreTrainedTokenizerFast

    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    plain.train_from_iterator([_TEXT] * 10, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", eos_token="</s>", pad_token="</s>")


def _edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def with_weights(model: Path, folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The checkpoint with some weights changed, as a wrong weight adapter would leave them."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(
        {key: weight.contiguous() for key, weight in weights.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    return folder
