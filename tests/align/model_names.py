"""The layers of real models as each engine names them.

Models of transformers are made from tiny configurations, without weights; the names of engines that
are not installed here are written down as their sources have them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from functools import cache
from typing import Any

from tensordiff.align.presets import choose
from tensordiff.dump import Dump
from tests.making import held, numbers

Names = tuple[str, ...]

SMALL = {"vocab_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 8}
CONFIGS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": SMALL | {"num_key_value_heads": 1},
    "Qwen3ForCausalLM": SMALL | {"num_key_value_heads": 1, "head_dim": 4},
    "Phi3ForCausalLM": SMALL | {"num_key_value_heads": 1, "pad_token_id": 0},
    "MixtralForCausalLM": SMALL | {"num_key_value_heads": 1, "num_local_experts": 2},
    "NemotronForCausalLM": SMALL | {"num_key_value_heads": 1},
    "GPT2LMHeadModel": {"vocab_size": 32, "n_layer": 2, "n_head": 2, "n_embd": 8, "bos_token_id": 0, "eos_token_id": 0},
    "GPTJForCausalLM": {
        "vocab_size": 32, "n_layer": 2, "n_head": 2, "n_embd": 8, "rotary_dim": 4, "bos_token_id": 0, "eos_token_id": 0,
    },
    "BloomForCausalLM": {"vocab_size": 32, "n_layer": 2, "n_head": 2, "hidden_size": 8},
    "BertModel": SMALL,
    "RobertaForMaskedLM": SMALL,
    "OPTForCausalLM": {
        "vocab_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8, "ffn_dim": 8,
        "word_embed_proj_dim": 8,
    },
    "BartForConditionalGeneration": {
        "vocab_size": 32, "d_model": 8, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 8,
        "decoder_ffn_dim": 8, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    },
    "T5ForConditionalGeneration": {
        "vocab_size": 32, "d_model": 8, "d_ff": 8, "d_kv": 4, "num_layers": 2, "num_heads": 2,
    },
}  # fmt: skip


@cache
def transformers_layers(architecture: str) -> Names:
    """The layers of a model of transformers that can be called, by its own names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        import transformers

        made = getattr(transformers, architecture)
        with torch.device("meta"):
            model = made(made.config_class(**CONFIGS[architecture]))
    lists = torch.nn.ModuleList
    return tuple(name for name, module in model.named_modules() if name and not isinstance(module, lists))


def blocks(prefix: str, parts: str, before: str = "", after: str = "") -> Names:
    """Two blocks of the same parts, the block itself being ``.``; with what comes before and after them."""
    inside = (f"{prefix}.{i}" + (f".{part}" if part != "." else "") for i in range(2) for part in parts.split())
    return (*before.split(), *inside, *after.split())


VLLM_LLAMA = blocks(
    "model.layers",
    ". input_layernorm self_attn self_attn.qkv_proj self_attn.rotary_emb self_attn.attn self_attn.o_proj "
    "post_attention_layernorm mlp mlp.gate_up_proj mlp.act_fn mlp.down_proj",
    "model.embed_tokens",
    "model.norm logits_processor",
)
MAX_LLAMA = blocks(
    "model.layers.layers",
    ". input_layernorm self_attn self_attn.qkv_proj self_attn.o_proj post_attention_layernorm mlp mlp.down_proj",
    "model.embed_tokens",
    "model.norm model.lm_head",
)
MAX_LLAMA_V3 = tuple(
    name.replace("model.layers.layers", "model.language_model.layers")
    .replace("model.embed", "model.language_model.embed")
    .replace("model.norm", "model.language_model.norm")
    for name in MAX_LLAMA
)
MAX_QWEN3 = blocks(
    "model.layers.layers",
    ". input_layernorm_shards.0 self_attn_shards.0 self_attn_shards.0.qkv_proj self_attn_shards.0.q_norm "
    "self_attn_shards.0.k_norm self_attn_shards.0.o_proj post_attention_layernorm_shards.0 mlp_shards.0 "
    "mlp_shards.0.down_proj",
    "model.embed_tokens model.embed_tokens.allreduce",
    "model.norm_shards.0 model.lm_head.distributed_linear_layers.0 model.lm_head",
)
MAX_BERT = blocks(
    "model.encoder.layer.layers",
    ". attention attention.self attention.self.query attention.self.key attention.self.value attention.output "
    "attention.output.dense attention.output.layer_norm intermediate intermediate.dense output output.dense "
    "output.layer_norm",
    "model.embeddings model.embeddings.word_embeddings model.embeddings.position_embeddings "
    "model.embeddings.token_type_embeddings model.embeddings.layer_norm",
)
VERIFY_LAYERS_LLAMA = blocks(
    "layers",
    "TransformerBlock AttentionWithRope MLP input_layernorm self_attn.o_proj post_attention_layernorm mlp.down_proj",
    "embed_tokens",
    "norm lm_head",
)
ORIGINAL_LLAMA = blocks(
    "layers",
    ". attention attention.wq attention.wk attention.wv attention.wo feed_forward feed_forward.w1 feed_forward.w2 "
    "feed_forward.w3 attention_norm ffn_norm",
    "tok_embeddings",
    "norm output",
)
MEGATRON_CORE = blocks(
    "decoder.layers",
    ". input_layernorm self_attention self_attention.linear_qkv self_attention.q_layernorm self_attention.k_layernorm "
    "self_attention.core_attention self_attention.linear_proj pre_mlp_layernorm mlp mlp.linear_fc1 mlp.linear_fc2",
    "embedding.word_embeddings",
    "decoder.final_layernorm output_layer",
)
MEGATRON_BEFORE_CORE = blocks(
    "language_model.encoder.layers",
    ". input_norm self_attention self_attention.query_key_value self_attention.dense post_attention_norm mlp "
    "mlp.dense_h_to_4h mlp.dense_4h_to_h",
    "language_model.embedding.word_embeddings",
    "language_model.encoder.final_norm language_model.output_layer",
)
FAIRSEQ_ROBERTA = blocks(
    "encoder.sentence_encoder.layers",
    ". self_attn self_attn.k_proj self_attn.v_proj self_attn.q_proj self_attn.out_proj self_attn_layer_norm fc1 fc2 "
    "final_layer_norm",
    "encoder.sentence_encoder.embed_tokens encoder.sentence_encoder.embed_positions "
    "encoder.sentence_encoder.layernorm_embedding",
    "encoder.lm_head encoder.lm_head.dense encoder.lm_head.layer_norm",
)
FAIRSEQ_DECODER = blocks(
    "decoder.layers",
    ". self_attn self_attn.k_proj self_attn.v_proj self_attn.q_proj self_attn.out_proj self_attn_layer_norm fc1 fc2 "
    "final_layer_norm",
    "decoder.embed_tokens decoder.embed_positions",
    "decoder.layer_norm decoder.output_projection",
)
OTHERS = {
    "vllm llama": VLLM_LLAMA,
    "max llama": MAX_LLAMA,
    "max llama v3": MAX_LLAMA_V3,
    "max qwen3": MAX_QWEN3,
    "max bert": MAX_BERT,
    "verify_layers llama": VERIFY_LAYERS_LLAMA,
    "original llama": ORIGINAL_LLAMA,
    "megatron core": MEGATRON_CORE,
    "megatron before core": MEGATRON_BEFORE_CORE,
    "fairseq roberta": FAIRSEQ_ROBERTA,
    "fairseq decoder": FAIRSEQ_DECODER,
}


def dump(layers: Iterable[str]) -> Dump:
    """A dump of these layers' outputs."""
    return held({f"{layer}-output": numbers(1) for layer in layers})


def layers_of(model: str) -> Names:
    """The layers of any model here."""
    return OTHERS[model] if model in OTHERS else transformers_layers(model)


def same(reference: Names, candidate: Names) -> dict[str, str]:
    """The layers of the first block, and outside of blocks, that are spelled alike; the last of several wins."""
    rules = choose(dump(reference), dump(candidate)).rules
    theirs = {rules.canonical(layer, "candidate"): layer for layer in candidate}
    found = {layer: theirs.get(rules.canonical(layer, "reference")) for layer in reference}
    return {ours: other for ours, other in found.items() if other and not re.search(r"\.1(\.|$)", ours)}
