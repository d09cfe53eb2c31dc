"""Where the files of an architecture, or llama.cpp's code for it, name or lay out a tensor otherwise than transformers.

The names of GGUF files are the same for all architectures but do not always mean the same: what comes after a block's
attention is ``ffn_norm`` in most, which transformers calls ``post_attention_layernorm``, except in Gemma.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Architecture:
    """What is particular to an architecture."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Names of weights, without block and ending, that stand for other layers than elsewhere; layers are named so."""
    has_paired_rope: bool = False
    """Whether conversion puts rope's two halves side by side, in the rows of attn_q and attn_k."""
    has_inner_residual: bool = False
    """Whether the attention and the feed-forward part of transformers add what they were given; they are left out."""
    has_heads_first: bool = False
    """Whether transformers normalizes queries and keys head by head, where llama.cpp does token by token."""

    def renamed(self, weight: str) -> str:
        """What a layer is named after: in Gemma ``blk.0.ffn_norm`` is ``blk.0.pre_feedforward_layernorm``."""
        holder, dot, name = weight.rpartition(".")
        return f"{holder}{dot}{self.names.get(name, name)}"


_NORMS = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_GEMMA = _NORMS | {"ffn_norm": "pre_feedforward_layernorm"}

_PAIRED = (
    "llama", "llama-embed", "arcee", "arctic", "baichuan", "bailingmoe", "deci", "deepseek", "granite", "granitehybrid",
    "granitemoe", "internlm2", "llada", "minicpm", "mistral3", "nanbeige", "olmo", "smollm3", "xverse",
)  # fmt: skip
"""The architectures whose weights llama.cpp's converter lays out for rope as Llama's. That of rope itself does not say
it: Cohere's pairs stand side by side in transformers, too."""
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
    """What is known of an architecture, by the name that GGUF files have for it."""
    return _KNOWN.get(name, _OTHER)
