"""The architectures of the museum, as small as they come, and how one of them is built.

A configuration here says only what matters for the size, and what makes a part of the model do something: groups of
experts, windows shorter than the prompt, multipliers other than one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import transformers

from studies.museum.diffusion import DiffusionTransformer
from studies.museum.weights import cast_as_loaded, draw_weights

Input = Literal["text", "text pair", "image", "speech", "wave", "latents"]
VOCABULARY = 160
DEPTH = 3


@dataclass(frozen=True)
class Architecture:
    """One architecture: its classes, its size, what it is asked and what its parts are called."""

    name: str
    model: str
    """The class, of transformers."""
    config: Mapping[str, Any] = field(default_factory=dict)
    config_class: str = ""
    blocks: str = r"model\.layers\.\d+"
    """What the names of its blocks match, whole."""
    input: Input = "text"
    is_zero_centred: bool = False
    """Whether norms add one to their weight."""
    embeddings: float = 1.0
    """The size of the token embeddings."""
    has_fused_attention: bool = True
    has_cache: bool = True

    def where(self, **config: Any) -> Architecture:
        """The same with more in its configuration."""
        return replace(self, config={**self.config, **config})

    def build(self, seed: int, dtype: str, prepare: Callable[[Any], None] | None = None) -> Any:
        """A model: the same for the same seed, in whatever type. ``prepare`` changes its weights before the cast."""
        torch.manual_seed(seed)
        model = DiffusionTransformer() if self.input == "latents" else self._from_transformers()
        draw_weights(model, is_zero_centred=self.is_zero_centred, embeddings=self.embeddings)
        if prepare is not None:
            prepare(model)
        cast_as_loaded(model, getattr(torch, dtype))
        return model.eval()

    def _from_transformers(self) -> Any:
        config_class = self.config_class or f"{self.model.removesuffix('ForCausalLM').removesuffix('Model')}Config"
        config = getattr(transformers, config_class)(**self.config)
        config._attn_implementation = "eager"
        config._experts_implementation = "eager"
        return getattr(transformers, self.model)(config)


_TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SIZE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": DEPTH, "num_attention_heads": 4}
_TEXT = _TOKENS | _SIZE | {"max_position_embeddings": 256, "tie_word_embeddings": False}
_GROUPED = _TEXT | {"num_key_value_heads": 2}
_HEADS = _GROUPED | {"head_dim": 16}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_SIGMOID = {
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 4, "topk_group": 2,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
}  # fmt: skip
_MLA = {
    "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}  # fmt: skip
_SSM = {
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_chunk_size": 8,
}  # fmt: skip
_WAVE = {
    "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": DEPTH, "num_attention_heads": 4, "conv_bias": True,
    "conv_dim": (16, 16, 16), "conv_kernel": (10, 3, 3), "conv_stride": (5, 2, 2), "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4, "mask_time_prob": 0.0, "mask_feature_prob": 0.0, "vocab_size": 32,
    "num_feat_extract_layers": 3,
}  # fmt: skip

LLAMA = Architecture("llama", "LlamaForCausalLM", _HEADS | {"attention_bias": True})
QWEN2 = Architecture("qwen2", "Qwen2ForCausalLM", _GROUPED)
QWEN3 = Architecture("qwen3", "Qwen3ForCausalLM", _HEADS)
MISTRAL = Architecture("mistral", "MistralForCausalLM", _HEADS | {"sliding_window": 8})
PHI = Architecture("phi", "PhiForCausalLM", _GROUPED | {"partial_rotary_factor": 0.5})
GRANITE = Architecture(
    "granite", "GraniteForCausalLM",
    _GROUPED
    | {"residual_multiplier": 0.4, "embedding_multiplier": 2.0, "attention_multiplier": 0.3, "logits_scaling": 2.0},
)  # fmt: skip
OLMO2 = Architecture("olmo2", "Olmo2ForCausalLM", _GROUPED)
GEMMA2 = Architecture(
    "gemma2", "Gemma2ForCausalLM", _HEADS | {"sliding_window": 8, "query_pre_attn_scalar": 16},
    is_zero_centred=True, embeddings=0.125, has_fused_attention=False,  # which does not cap scores
)  # fmt: skip
GEMMA3 = Architecture(
    "gemma3", "Gemma3ForCausalLM",
    _HEADS
    | {
        "sliding_window": 8, "query_pre_attn_scalar": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "Gemma3TextConfig", is_zero_centred=True, embeddings=0.125,
)  # fmt: skip
GPT2 = Architecture(
    "gpt2", "GPT2LMHeadModel", _TOKENS | {"n_embd": 64, "n_layer": DEPTH, "n_head": 4, "n_positions": 256},
    "GPT2Config", r"transformer\.h\.\d+",
)  # fmt: skip
GPT_NEOX = Architecture(
    "gpt_neox", "GPTNeoXForCausalLM", _TEXT, blocks=r"gpt_neox\.layers\.\d+",
)  # fmt: skip
BLOOM = Architecture(
    "bloom", "BloomForCausalLM", _TOKENS | {"hidden_size": 48, "n_layer": DEPTH, "n_head": 6},
    blocks=r"transformer\.h\.\d+", has_fused_attention=False,
)  # fmt: skip
MPT = Architecture(
    "mpt", "MptForCausalLM", _TOKENS | {"d_model": 64, "n_layers": DEPTH, "n_heads": 8, "max_seq_len": 64},
    blocks=r"transformer\.blocks\.\d+", has_fused_attention=False, has_cache=False,
)  # fmt: skip
FALCON = Architecture(
    "falcon", "FalconForCausalLM",
    _TOKENS
    | {
        "hidden_size": 64, "num_hidden_layers": DEPTH, "num_attention_heads": 4, "multi_query": True,
        "parallel_attn": True, "new_decoder_architecture": False, "alibi": False, "bias": True,
    },
    blocks=r"transformer\.h\.\d+",
)  # fmt: skip
MIXTRAL = Architecture("mixtral", "MixtralForCausalLM", _GROUPED | {"num_local_experts": 6})
QWEN2_MOE = Architecture(
    "qwen2_moe", "Qwen2MoeForCausalLM",
    _GROUPED | _EXPERTS | {"shared_expert_intermediate_size": 48, "norm_topk_prob": False},
)  # fmt: skip
QWEN3_MOE = Architecture("qwen3_moe", "Qwen3MoeForCausalLM", _HEADS | _EXPERTS | {"norm_topk_prob": True})
OLMOE = Architecture("olmoe", "OlmoeForCausalLM", _GROUPED | _EXPERTS | {"norm_topk_prob": False})
DEEPSEEK_V3 = Architecture("deepseek_v3", "DeepseekV3ForCausalLM", _TEXT | _MLA | _SIGMOID)
GLM4_MOE = Architecture(
    "glm4_moe", "Glm4MoeForCausalLM", _HEADS | _SIGMOID | {"partial_rotary_factor": 0.5, "use_qk_norm": True},
)  # fmt: skip
GPT_OSS = Architecture(
    "gpt_oss", "GptOssForCausalLM",
    _HEADS
    | {
        "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    has_fused_attention=False,
)  # fmt: skip
_STATES = {"hidden_size": 64, "num_hidden_layers": DEPTH, "state_size": 8, "tie_word_embeddings": False}
MAMBA = Architecture(
    "mamba", "MambaForCausalLM", _TOKENS | _STATES, blocks=r"backbone\.layers\.\d+", has_fused_attention=False,
)  # fmt: skip
MAMBA2 = Architecture(
    "mamba2", "Mamba2ForCausalLM",
    _TOKENS | _STATES | {"num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 8},
    blocks=r"backbone\.layers\.\d+", has_fused_attention=False,
)  # fmt: skip
FALCON_H1 = Architecture(
    "falcon_h1", "FalconH1ForCausalLM",
    _GROUPED
    | _SSM
    | {
        "mamba_n_heads": 4, "mamba_d_ssm": 64, "mamba_rms_norm": True, "mamba_norm_before_gate": False,
        "ssm_in_multiplier": 0.4, "ssm_out_multiplier": 0.8, "attention_in_multiplier": 0.9,
        "attention_out_multiplier": 0.7, "key_multiplier": 0.8, "embedding_multiplier": 1.5,
        "lm_head_multiplier": 0.5, "mlp_multipliers": [0.9, 0.7],
        "ssm_multipliers": [0.9, 0.8, 0.7, 0.9, 0.8],
    },
    has_cache=False,  # in transformers 5.12 its second token after a prompt finds a mask of another length
)  # fmt: skip
BAMBA = Architecture("bamba", "BambaForCausalLM", _GROUPED | _SSM | {"attn_layer_indices": [1]})
JAMBA = Architecture(
    "jamba", "JambaForCausalLM",
    _GROUPED
    | {
        "num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 3, "attn_layer_offset": 1,
        "expert_layer_period": 2, "expert_layer_offset": 1, "mamba_d_state": 8, "use_mamba_kernels": False,
    },
)  # fmt: skip
LFM2 = Architecture("lfm2", "Lfm2ForCausalLM", _GROUPED | {"full_attn_idxs": [1]})
QWEN3_NEXT = Architecture(
    "qwen3_next", "Qwen3NextForCausalLM",
    _HEADS
    | _EXPERTS
    | {
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        "shared_expert_intermediate_size": 32,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    is_zero_centred=True,
)  # fmt: skip
BERT = Architecture(
    "bert", "BertModel", _TOKENS | _SIZE | {"max_position_embeddings": 64}, blocks=r"encoder\.layer\.\d+",
    has_cache=False,
)  # fmt: skip
ROBERTA = Architecture(
    "roberta", "RobertaModel", _TOKENS | _SIZE | {"max_position_embeddings": 64}, blocks=r"encoder\.layer\.\d+",
    has_cache=False,
)  # fmt: skip
_BOTH = r"(?:model\.)?(?:en|de)coder\.(?:layers|block)\.\d+"
T5 = Architecture(
    "t5", "T5ForConditionalGeneration",
    {
        "vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": DEPTH, "num_heads": 4,
        "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0, "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
    },
    "T5Config", _BOTH, "text pair", has_fused_attention=False,
)  # fmt: skip
BART = Architecture(
    "bart", "BartForConditionalGeneration",
    _TOKENS
    | {
        "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "max_position_embeddings": 64,
        "decoder_start_token_id": 2, "forced_eos_token_id": None,
    },
    "BartConfig", _BOTH, "text pair",
)  # fmt: skip
WHISPER = Architecture(
    "whisper", "WhisperForConditionalGeneration",
    _TOKENS
    | {
        "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "num_mel_bins": 16,
        "max_source_positions": 30, "max_target_positions": 40, "decoder_start_token_id": 1,
    },
    "WhisperConfig", _BOTH, "speech",
)  # fmt: skip
WAV2VEC2 = Architecture(
    "wav2vec2", "Wav2Vec2Model", _WAVE | {"feat_extract_norm": "layer"}, blocks=r"encoder\.layers\.\d+", input="wave",
    has_cache=False,
)  # fmt: skip
HUBERT = Architecture(
    "hubert", "HubertModel", _WAVE | {"feat_extract_norm": "group"}, blocks=r"encoder\.layers\.\d+", input="wave",
    has_cache=False,
)  # fmt: skip
_IMAGE = {"image_size": 32, "patch_size": 8}
CLIP = Architecture(
    "clip", "CLIPVisionModel", _SIZE | _IMAGE | {"hidden_act": "quick_gelu"}, "CLIPVisionConfig",
    r"encoder\.layers\.\d+", "image", has_cache=False,
)  # fmt: skip
VIT = Architecture(
    "vit", "ViTModel", _SIZE | _IMAGE, blocks=r"(?:encoder\.layer|layers)\.\d+", input="image", has_cache=False,
)  # fmt: skip
SIGLIP = Architecture(
    "siglip", "SiglipVisionModel", _SIZE | _IMAGE, "SiglipVisionConfig", r"(?:vision_model\.)?encoder\.layers\.\d+",
    "image", has_cache=False,
)  # fmt: skip
DIFFUSION = Architecture(
    "diffusion", "", blocks=r"blocks\.\d+", input="latents", has_fused_attention=False, has_cache=False,
)  # fmt: skip

ARCHITECTURES = (
    LLAMA, QWEN2, QWEN3, MISTRAL, PHI, GRANITE, OLMO2, GEMMA2, GEMMA3, GPT2, GPT_NEOX, BLOOM, MPT, FALCON, MIXTRAL,
    QWEN2_MOE, QWEN3_MOE, OLMOE, DEEPSEEK_V3, GLM4_MOE, GPT_OSS, MAMBA, MAMBA2, FALCON_H1, BAMBA, JAMBA, LFM2,
    QWEN3_NEXT, BERT, ROBERTA, T5, BART, WHISPER, WAV2VEC2, HUBERT, CLIP, VIT, SIGLIP, DIFFUSION,
)  # fmt: skip
