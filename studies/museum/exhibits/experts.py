"""Mixtures of experts: how they are chosen and weighed, and what an expert computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from studies.museum.architectures import DEEPSEEK_V3, GPT_OSS, QWEN2_MOE
from studies.museum.exhibit import ROUTES, Exhibit

_MOE = "model.layers.1.mlp"


def _mixtures(model: Any) -> Iterator[Any]:
    return (layer.mlp for layer in model.model.layers if hasattr(layer.mlp, "experts"))


def _over_chosen(model: Any) -> None:
    for mixture in _mixtures(model):
        mixture.gate.norm_topk_prob = True


def _without_one(model: Any) -> None:
    for mixture in _mixtures(model):
        mixture.experts._apply_gate = _gated(mixture.experts, 0.0)


def _gated(experts: Any, added: float) -> Any:
    def apply(gate_up: Any) -> Any:
        gate, up = gate_up[..., ::2].clamp(max=experts.limit), gate_up[..., 1::2].clamp(-experts.limit, experts.limit)
        return (up + added) * gate * torch.sigmoid(gate * experts.alpha)

    return apply


def _unlimited(model: Any) -> None:
    for mixture in _mixtures(model):
        mixture.experts.limit = float("inf")


def _limit_of_zero(model: Any) -> None:
    for mixture in _mixtures(model):
        mixture.experts.limit = 0.0


def _router_in_bfloat16(model: Any) -> None:
    for mixture in _mixtures(model):
        mixture.gate.forward = _in_bfloat16(mixture.gate)


def _in_bfloat16(gate: Any) -> Any:
    def forward(hidden_states: Any) -> Any:
        flat = hidden_states.reshape(-1, hidden_states.shape[-1])
        return nn.functional.linear(flat.bfloat16(), gate.weight.bfloat16()).float()

    return forward


def _chosen(mixture: Any, *, best: int, is_limited: bool) -> Any:
    """How tokens choose experts, where groups are scored by their best few, and need not be heeded."""

    def route(router_logits: Any) -> tuple[Any, Any]:
        scores = router_logits.sigmoid()
        wanted = scores + mixture.gate.e_score_correction_bias
        if is_limited:
            groups = wanted.unflatten(-1, (mixture.n_group, -1))
            taken = groups.topk(best, -1).values.sum(-1).topk(mixture.topk_group, -1).indices
            seen = torch.zeros(groups.shape[:-1], dtype=torch.bool).scatter(-1, taken, True)
            wanted = groups.masked_fill(~seen[..., None], -torch.inf).flatten(-2)
        routes = wanted.topk(mixture.top_k, -1, sorted=False).indices
        weights = scores.gather(-1, routes)
        return routes, weights / (weights.sum(-1, keepdim=True) + 1e-20) * mixture.routed_scaling_factor

    return route


def _by_best_alone(model: Any) -> None:
    for mixture in _mixtures(model):
        mixture.route_tokens_to_experts = _chosen(mixture, best=1, is_limited=True)


def _without_groups(model: Any) -> None:
    for mixture in _mixtures(model):
        mixture.route_tokens_to_experts = _chosen(mixture, best=2, is_limited=False)


def _large_bias(model: Any) -> None:
    """A trained bias is many times the differences that it decides between."""
    for mixture in _mixtures(model):
        bias = mixture.gate.e_score_correction_bias
        bias.copy_(20 + 0.2 * torch.randn(bias.shape))


def _bias_in_bfloat16(model: Any) -> None:
    for mixture in _mixtures(model):
        mixture.gate.e_score_correction_bias.copy_(mixture.gate.e_score_correction_bias.bfloat16())


EXHIBITS = (
    Exhibit(
        "softmax_over_chosen", ("lablup/mlxcel#391", "sgl-project/sglang#35160"),
        "softmax runs over the chosen experts alone, though norm_topk_prob is false", QWEN2_MOE,
        ("model.layers.0.mlp.gate",), _over_chosen, ("scale_per_token", "expert_weights"),
    ),
    Exhibit(
        "glu_without_one", ("sgl-project/sglang#39939",), "(up + 1) * glu became up * glu", GPT_OSS,
        ("model.layers.0.mlp.experts",), _without_one,
    ),
    Exhibit(
        "limit_of_zero", ("microsoft/onnxruntime#27221",), "a limit of 0 instead of none clamps all of SwiGLU",
        GPT_OSS, ("model.layers.0.mlp.experts",), _limit_of_zero, right=_unlimited,
    ),
    Exhibit(
        "router_in_bfloat16", ("vllm-project/vllm#14027", "vllm-project/vllm#58076", "sgl-project/sglang#33764"),
        "router logits are computed in bfloat16", DEEPSEEK_V3, (f"{_MOE}.gate",), _router_in_bfloat16,
        ("rounded", "last_bits"),
    ),
    Exhibit(
        "groups_by_best_alone", ("vllm-project/vllm#13474",),
        "groups are scored by their best expert instead of the best two", DEEPSEEK_V3, (_MOE,), _by_best_alone, ROUTES,
    ),
    Exhibit(
        "groups_ignored", ("EricLBuehler/mistral.rs#1278",), "the best experts are taken from all groups",
        DEEPSEEK_V3.where(topk_group=1), (_MOE,), _without_groups, ROUTES,
    ),
    Exhibit(
        "router_bias_in_bfloat16", ("vllm-project/vllm#23640",), "e_score_correction_bias is held in bfloat16",
        DEEPSEEK_V3, (_MOE,), _bias_in_bfloat16, ROUTES, prepare=_large_bias,
    ),
)  # fmt: skip
