"""Single parts and what is between them: norms, activations, projections, residuals, the head."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN

from studies.bugs.spot import replace_forward
from studies.museum.architectures import BERT, CLIP, FALCON, FALCON_H1, GEMMA2, GEMMA3, GRANITE, LLAMA, MAMBA2, OLMO2
from studies.museum.exhibit import SEES_BACK, Exhibit


def _rounded_scale(model: Any) -> None:
    scale = model.model.embed_tokens.embed_scale
    scale.copy_(scale.bfloat16())


def _multiplier_of_one(model: Any) -> None:
    for layer in model.model.layers:
        layer.residual_multiplier = 1.0


def _two_norms(model: Any) -> None:
    """The mlp is given a norm of its own, which the checkpoint has no weights for."""
    for block in model.transformer.h:
        seen: list[Any] = []
        block.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))
        block.mlp.register_forward_pre_hook(
            lambda _, args, seen=seen: (nn.functional.layer_norm(seen[-1], seen[-1].shape[-1:]), *args[1:]),
            prepend=True,
        )


def _cancelled_multiplier(model: Any) -> None:
    for layer in model.model.layers:
        layer.mamba.ssm_in_multiplier = 1.0


def _in_halves(norm: Any, calls: Any) -> Any:
    """A norm whose two halves are normed each by itself."""

    def forward(x: Any, *rest: Any) -> Any:
        half = x.shape[-1] // 2
        weight = norm.weight.data
        parts = []
        for begin in (0, half):
            norm.weight.data = weight[begin : begin + half]
            parts.append(calls(x[..., begin : begin + half], *(one[..., begin : begin + half] for one in rest)))
        norm.weight.data = weight
        return torch.cat(parts, -1)

    return forward


def _normed_per_rank(model: Any) -> None:
    for layer in model.model.layers:
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
            norm.forward = _in_halves(norm, norm.forward)


def _gated_norm_per_rank(model: Any) -> None:
    for layer in model.backbone.layers:
        norm = layer.mixer.norm
        norm.forward = _in_halves(norm, norm.forward)


def _exact_gelu(model: Any) -> None:
    for layer in model.model.layers:
        replace_forward(layer.mlp.act_fn, lambda _: ACT2FN["gelu"].forward)


def _plain_gelu(model: Any) -> None:
    for layer in model.encoder.layers:
        replace_forward(layer.mlp.activation_fn, lambda _: ACT2FN["gelu"].forward)


def _small_embeddings(model: Any) -> None:
    """Those of a trained encoder are small."""
    for embedding in model.embeddings.modules():
        if isinstance(embedding, nn.Embedding):
            embedding.weight.data *= 0.03


def _larger_epsilon(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5


def _untied(model: Any) -> None:
    weight = model.lm_head.weight
    made = torch.randn(weight.shape, generator=torch.Generator().manual_seed(7))
    model.lm_head.weight = nn.Parameter((made * weight.float().std()).to(weight.dtype))


def _uneven_rows(model: Any) -> None:
    """Rows of a trained weight differ in size, and so do their scales."""
    for layer in model.model.layers:
        weight = layer.self_attn.o_proj.weight
        weight.data *= torch.exp(0.5 * torch.randn(len(weight)))[:, None]


def _quantized(model: Any, axis: int) -> None:
    """Weights of 8 bits with one scale for each output channel, applied along an axis."""
    for layer in model.model.layers:
        weight = layer.self_attn.o_proj.weight
        scales = weight.data.float().abs().amax(1) / 127
        whole = (weight.data.float() / scales[:, None]).round()
        weight.data = (whole * (scales[:, None] if axis == 0 else scales[None, :])).to(weight.dtype)


EXHIBITS = (
    Exhibit(
        "embedding_scale_rounded", ("huggingface/transformers#38702", "huggingface/transformers#29402"),
        "sqrt(hidden) is rounded to bfloat16 in a float32 run", GEMMA3.where(hidden_size=48), ("model.embed_tokens",),
        _rounded_scale, ("scale",),
    ),
    Exhibit(
        "residual_multiplier_ignored", ("OpenNMT/CTranslate2#1882",), "residual_multiplier is ignored", GRANITE,
        ("model.layers.0",), _multiplier_of_one, ("residual_scaled",),
    ),
    Exhibit(
        "two_norms_assumed", ("NVIDIA/TransformerEngine#625",),
        "attention and MLP share one norm, and two are assumed", FALCON, ("transformer.h.0",), _two_norms,
        ("scale_per_channel", "norm_weight"),
    ),
    Exhibit(
        "multiplier_before_norm", ("NVIDIA-NeMo/Megatron-Bridge#4845",),
        "ssm_in_multiplier is applied before the norm, which cancels it", FALCON_H1, ("model.layers.0.mamba",),
        _cancelled_multiplier, ("scale",),
    ),
    Exhibit(
        "norm_per_rank", ("EleutherAI/gpt-neox#1424", "allenai/OLMo#877"),
        "q and k are normed per rank instead of over all heads", OLMO2, ("model.layers.0.self_attn.q_norm",),
        _normed_per_rank, (*SEES_BACK, "norm_groups"),
    ),
    Exhibit(
        "gated_norm_per_rank", ("state-spaces/mamba#951",),
        "the group size of the gated norm is not divided by the ranks", MAMBA2, ("backbone.layers.0.mixer.norm",),
        _gated_norm_per_rank, ("norm_groups",),
    ),
    Exhibit(
        "exact_gelu", ("ml-explore/mlx-examples#1057",), "exact GELU instead of its approximation by tanh", GEMMA2,
        ("model.layers.0.mlp.act_fn",), _exact_gelu, ("activation",),
    ),
    Exhibit(
        "plain_gelu", ("mindspore-lab/mindone#225", "mlfoundations/open_clip#771"), "GELU instead of QuickGELU", CLIP,
        ("encoder.layers.0.mlp.activation_fn",), _plain_gelu, ("activation",),
    ),
    Exhibit(
        "larger_epsilon", ("keras-team/keras-hub#642",), "an epsilon of 1e-5 for 1e-12 in all norms",
        BERT.where(layer_norm_eps=1e-12), ("embeddings.LayerNorm",), _larger_epsilon, ("scale_per_token", "scale"),
        prepare=_small_embeddings,
    ),
    Exhibit(
        "head_not_tied", ("huggingface/transformers#43429",), "the head is not tied to the embedding",
        LLAMA.where(tie_word_embeddings=True), ("lm_head",), _untied, ("other_weights",),
    ),
    Exhibit(
        "scales_on_input_channels", ("Comfy-Org/comfy-kitchen#37",),
        "scales of output channels are applied to input channels of an int8 weight", LLAMA,
        ("model.layers.0.self_attn.o_proj",), lambda model: _quantized(model, 1), ("scale_axis",),
        prepare=_uneven_rows, right=lambda model: _quantized(model, 0),
    ),
)  # fmt: skip
