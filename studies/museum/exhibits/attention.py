"""Attention: scales, splits, sinks, and the bias of positions."""

from __future__ import annotations

import math
from typing import Any

import torch

from studies.bugs.spot import change_handed_on
from studies.museum.architectures import BLOOM, DEEPSEEK_V3, GPT2, GPT_NEOX, GPT_OSS, MPT, T5
from studies.museum.exhibit import SEES_BACK, Exhibit
from studies.museum.exhibits.rope import attentions

_YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32,
    "beta_slow": 1, "original_max_position_embeddings": 32,
}  # fmt: skip
_SCORES = (*SEES_BACK, "score_scale")


def _same_in_every_layer(model: Any) -> None:
    for block in model.transformer.h:
        block.attn.scaling = block.attn.head_dim**-0.5


def _without_mscale(model: Any) -> None:
    for attention in attentions(model):
        attention.scaling = attention.qk_head_dim**-0.5


def _inverted(model: Any) -> None:
    for attention in attentions(model):
        attention.scaling = 1 / attention.scaling


def _without_sinks(model: Any) -> None:
    for attention in attentions(model):
        attention.sinks.data.fill_(-1e4)


def _split_in_three(model: Any) -> None:
    """Queries, keys and values are taken one after the other, though they lie side by side for every head."""
    heads = model.config.num_attention_heads

    def change(y: Any) -> Any:
        return y.unflatten(-1, (3, heads, -1)).transpose(-2, -3).flatten(-3)

    for layer in model.gpt_neox.layers:
        change_handed_on(layer.attention.query_key_value, change)()


def _by_layer_number(model: Any) -> None:
    """Scores are divided by the number of the layer, against overflow, and not multiplied by it again."""
    for stack in (model.encoder, model.decoder):
        for number, block in enumerate(stack.block, 1):
            change_handed_on(block.layer[0].SelfAttention.q, lambda y, by=number: y / by)()  # type: ignore[misc]


def _weights_as_bias(model: Any) -> None:
    """What the cross-attention of a block weighs is taken for the bias of its positions in the next."""
    seen: list[Any] = []

    def change(_: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*args[:5], seen[-1], *args[6:]) if seen else args

    for block in model.decoder.block:
        block.register_forward_pre_hook(change, prepend=True)
        block.layer[1].EncDecAttention.register_forward_hook(lambda _, __, output: seen.append(output[-1]))


def _asked_for_weights(model: Any) -> None:
    """The bug shows only if attention weights are asked for, which changes nothing else."""
    model.config.output_attentions = True
    for stack in (model.encoder, model.decoder):
        stack.config.output_attentions = True


def _as_power_of_two(model: Any) -> None:
    """The slopes of eight heads' formula, for six."""

    def build(attention_mask: Any, num_heads: int, dtype: torch.dtype) -> Any:
        slopes = 2.0 ** (-8.0 / num_heads * torch.arange(1, num_heads + 1))
        places = ((attention_mask.cumsum(-1) - 1) * attention_mask)[:, None, :]
        return (slopes[..., None] * places).reshape(-1, 1, attention_mask.shape[1]).to(dtype)

    model.transformer.build_alibi_tensor = build


def _exponent_off_by_one(model: Any) -> None:
    def build(num_heads: int, sequence_length: int, alibi_bias_max: int = 8, device: Any = None) -> Any:
        places = torch.arange(1 - sequence_length, 1, device=device).view(1, 1, sequence_length)
        slopes = 2.0 ** (-alibi_bias_max / num_heads * torch.arange(num_heads))
        return places * slopes.view(num_heads, 1, 1)

    assert math.log2(model.transformer.num_heads).is_integer()  # noqa: S101 - only the exponent is to differ
    model.transformer.build_mpt_alibi_tensor = build


EXHIBITS = (
    Exhibit(
        "not_by_layer_number", ("TransformerLensOrg/TransformerLens#27",),
        "scores are not divided by the layer's number", GPT2.where(scale_attn_by_inverse_layer_idx=True),
        ("transformer.h.1.attn",), _same_in_every_layer, _SCORES,
    ),
    Exhibit(
        "mscale_missing",
        ("onnxruntime/mobius#548", "huggingface/transformers#47435", "vllm-project/tpu-inference#521"),
        "the square of mscale_all_dim is missing in the softmax scale", DEEPSEEK_V3.where(rope_parameters=_YARN),
        ("model.layers.0.self_attn",), _without_mscale, _SCORES,
    ),
    Exhibit(
        "scale_inverted", ("AI-Hypercomputer/maxtext#1370",), "the softmax scale of MLA is inverted", DEEPSEEK_V3,
        ("model.layers.0.self_attn",), _inverted, _SCORES,
    ),
    Exhibit(
        "sinks_ignored", ("vllm-project/vllm#52156",), "attention sinks are ignored", GPT_OSS,
        ("model.layers.0.self_attn",), _without_sinks, ("attention_sinks",),
    ),
    Exhibit(
        "fused_split_in_three",
        ("sgl-project/sglang#24321", "tensorflow/swift-models#564", "lablup/mlxcel#928"),
        "the fused projection is split in three instead of per head", GPT_NEOX, ("gpt_neox.layers.0.attention",),
        _split_in_three, ("blocks_swapped", "heads_permuted", "fused_layout"),
    ),
    Exhibit(
        "by_layer_number_once", ("NVIDIA/Megatron-LM#175",),
        "scores are divided by the layer's number and not multiplied by it again", T5,
        ("encoder.block.1.layer.0.SelfAttention",), _by_layer_number, ("score_scale",),
    ),
    Exhibit(
        "weights_as_bias", ("huggingface/transformers#4499",),
        "attention weights are passed on as the bias of the cross-attention", T5, ("decoder",), _weights_as_bias,
        (), prepare=_asked_for_weights,
    ),
    Exhibit(
        "alibi_of_six_heads", ("ml-explore/mlx#3071",),
        "slopes of ALiBi are wrong where the number of heads is no power of two", BLOOM, ("transformer",),
        _as_power_of_two, (*SEES_BACK, "scale_per_head"),
    ),
    Exhibit(
        "alibi_exponent", ("paiml/aprender#2143",), "the exponent of ALiBi's slopes is off by one", MPT,
        ("transformer",), _exponent_off_by_one, (*SEES_BACK, "scale", "scale_per_head"),
    ),
)  # fmt: skip
