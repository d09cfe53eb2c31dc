"""Weights that make every part of a model matter, and the types in which a checkpoint would be loaded.

A library's own initialization leaves norms at one, biases at zero and attention next to uniform, so that half of the
bugs would show nothing; here weights have the size that trained ones have.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

_KEPT = re.compile(r"(A_log|dt_proj\.weight|original0|logit_scale)$")
"""Weights whose own initialization is what makes them work: how fast a state is lost, a weight norm's length."""
_STEPS = re.compile(r"(dt_bias|dt_proj\.bias)$")
"""Steps of a state space: short ones, or it would remember nothing."""
_UNSCALED = re.compile(r"Attention\.q\.weight$")
"""Queries of T5, whose scores are not scaled: their weights are the smaller for it."""
_MADE_IN_TYPE = ("mup_vector",)
"""Not stored with the weights, but made in the model's type."""
_TRANSPOSED = re.compile(r"GptOssExperts$")
"""Experts whose weights are [expert, input, output]."""


def draw_weights(model: nn.Module, *, is_zero_centred: bool, embeddings: float) -> None:
    """Random numbers of the size that each weight has in a trained model."""
    owners = {
        f"{path}.{name}".lstrip("."): module for path, module in model.named_modules() for name in module._parameters
    }
    for name, weight in model.named_parameters():
        if not _KEPT.search(name) and weight.requires_grad:
            weight.data = _drawn(name, weight, owners[name], 0.0 if is_zero_centred else 1.0, embeddings)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.1 * torch.randn(buffer.shape))


def _drawn(name: str, weight: Any, owner: nn.Module, neutral: float, embeddings: float) -> Any:
    normal, kind = torch.randn(weight.shape), type(owner).__name__
    if _STEPS.search(name):
        return 0.5 * normal - 3.0
    if name.endswith("bias"):
        return 0.3 * normal
    if "Norm" in kind and weight.ndim == 1:
        is_centred = neutral == 0.0 and kind.endswith("RMSNorm")
        return 0.2 * normal + (0.0 if is_centred else 1.0)
    if weight.ndim == 1:
        return 0.2 * normal + 1.0 if name.endswith(".D") else normal
    if isinstance(owner, nn.Embedding):
        return normal * embeddings
    size = 0.25 if _UNSCALED.search(name) else 1.0
    return normal * 1.3 * size / _fan_in(weight, owner) ** 0.5


def _fan_in(weight: Any, owner: nn.Module) -> int:
    if isinstance(owner, Conv1D):
        return int(weight.shape[0])
    if isinstance(owner, nn.Conv1d | nn.Conv2d):
        return int(weight[0].numel())
    if _TRANSPOSED.search(type(owner).__name__):
        return int(weight.shape[-2])
    return int(weight.shape[-1])


def cast_as_loaded(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast what a checkpoint holds; what is computed on loading, and what must stay float32, stays."""
    kept = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    for name, weight in model.named_parameters():
        if not kept & set(name.split(".")):
            weight.data = weight.data.to(dtype)
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            is_stored = name not in module._non_persistent_buffers_set or name in _MADE_IN_TYPE
            if buffer is not None and buffer.is_floating_point() and is_stored and not kept & {*path.split("."), name}:
                module._buffers[name] = buffer.to(dtype)
