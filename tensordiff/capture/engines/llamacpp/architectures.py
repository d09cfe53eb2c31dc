"""Differences between architectures: where GGUF files or llama.cpp's code name or lay out a tensor unlike transformers.

GGUF files use the same names for all architectures, but not always with the same meaning: ``ffn_norm`` is the norm
after a block's attention in most, which transformers calls ``post_attention_layernorm``, but not in Gemma.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Architecture:
    """What differs in one architecture."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Names of weights, without block and ending, that mean another layer here; layers are named after these."""
    has_paired_rope: bool = False
    """Whether conversion interleaves the two halves of rope in the rows of attn_q and attn_k."""
    has_inner_residual: bool = False
    """Whether the attention and feed-forward modules of transformers add their input to their output; such modules are
    left out.
    """
    has_heads_first: bool = False
    """Whether transformers normalizes queries and keys head by head, where llama.cpp does it token by token."""

    def renamed(self, weight: str) -> str:
        """The name that a layer gets: in Gemma, ``blk.0.ffn_norm`` is named ``blk.0.pre_feedforward_layernorm``."""
        holder, dot, name = weight.rpartition(".")
        return f"{holder}{dot}{self.names.get(name, name)}"


_NORMS = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_GEMMA = _NORMS | {"ffn_norm": "pre_feedforward_layernorm"}

_PAIRED = (
    "llama", "llama-embed", "arcee", "arctic", "baichuan", "bailingmoe", "deci", "deepseek", "granite", "granitehybrid",
    "granitemoe", "internlm2", "llada", "minicpm", "mistral3", "nanbeige", "olmo", "smollm3", "xverse",
)  # fmt: skip
"""Architectures whose weights llama.cpp's converter permutes for rope, as it does Llama's.

The kind of rope does not tell: Cohere's pairs are interleaved in transformers, too.
"""
_KNOWN = {
    **dict.fromkeys(_PAIRED, Architecture(_NORMS, has_paired_rope=True)),
    "bloom": Architecture(has_inner_residual=True),
    "gemma2": Architecture(_GEMMA),
    "gemma3": Architecture(_GEMMA, has_heads_first=True),
    "glm4": Architecture({"post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"}),
    "gpt2": Architecture({"position_embd": "embed_positions"}),
}
_OTHER = Architecture(_NORMS)


def architecture(name: str) -> Architecture:
    """What is known of an architecture, by its name in GGUF files."""
    return _KNOWN.get(name, _OTHER)
