"""Bugs in a single module: norms, activations, matrix products, embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN

from studies.bugs.spot import Planting, Spot, change_output, replace_forward
from studies.models import linears

_NORMS = r"(?i)norm|:LayerNorm$|(^|\.)ln_"
_ACTIVATIONS = {
    "SiLUActivation": ("gelu", "gelu_pytorch_tanh", "relu", "sigmoid"), "SiLU": ("gelu", "gelu_pytorch_tanh", "relu"),
    "GELUActivation": ("gelu_pytorch_tanh", "relu", "silu", "quick_gelu"), "GELUTanh": ("gelu", "silu", "relu"),
    "NewGELUActivation": ("gelu", "relu", "silu"), "PytorchGELUTanh": ("gelu", "silu", "relu"),
}  # fmt: skip


def norm_eps(spot: Spot) -> Planting | None:
    """Another epsilon, as a configuration that was not read would give."""
    if (path := spot.one_of(spot.tiny.within(spot.block, _NORMS))) is None:
        return None
    module, eps = spot.module(path), float(spot.rng.choice([1e-5, 1e-4, 1e-3, 1e-2, 1e-1]))
    name = "variance_epsilon" if hasattr(module, "variance_epsilon") else "eps"
    return Planting(path, lambda: setattr(module, name, eps))


def norm_kind(spot: Spot) -> Planting | None:
    """The mean is taken off in a norm that should leave it."""
    paths = spot.tiny.within(spot.block, r":\w*RMSNorm$")
    if (path := spot.one_of(paths)) is None:
        return None
    module = spot.module(path)

    def made(forward: Any) -> Any:
        return lambda x: forward(x - x.mean(-1, keepdim=True))

    return Planting(path, lambda: replace_forward(module, made))


def norm_plus_one(spot: Spot) -> Planting | None:
    """The weight is taken as it stands where the model adds one to it, or the other way round."""
    paths = spot.tiny.within(spot.block, r":\w*RMSNorm$")
    if (path := spot.one_of(paths)) is None:
        return None
    module, by = spot.module(path), -1.0 if spot.tiny.arch.name == "gemma3" else 1.0
    return Planting(path, lambda: module.weight.data.add_(by))


def norm_weight(spot: Spot) -> Planting | None:
    """The weight of a norm was not loaded."""
    if (path := spot.one_of(spot.tiny.within(spot.block, r":\w*Norm$"))) is None:
        return None
    module, neutral = spot.module(path), 0.0 if spot.tiny.arch.name == "gemma3" else 1.0
    return Planting(path, lambda: module.weight.data.fill_(neutral))


def activation(spot: Spot) -> Planting | None:
    """Another activation."""
    names = "|".join(_ACTIVATIONS)
    if (path := spot.one_of(spot.tiny.within(spot.block, f":({names})$"))) is None:
        return None
    module = spot.module(path)
    other = ACT2FN[str(spot.rng.choice(_ACTIVATIONS[type(module).__name__]))]
    return Planting(path, lambda: replace_forward(module, lambda _: other.forward))


def _linear(spot: Spot, *, square: bool = False, biased: bool = False) -> str | None:
    fits = [
        path
        for path in linears(spot.tiny, spot.block)
        for weight, bias in [(spot.module(path).weight, spot.module(path).bias)]
        if not (square and weight.shape[0] != weight.shape[1]) and not (biased and bias is None)
    ]
    return spot.one_of(fits)


def transposed_weight(spot: Spot) -> Planting | None:
    """A square weight applied transposed."""
    if (path := _linear(spot, square=True)) is None:
        return None
    module = spot.module(path)
    return Planting(path, lambda: module.weight.data.copy_(module.weight.data.T.clone()))


def missing_bias(spot: Spot) -> Planting | None:
    """A bias that was not loaded."""
    if (path := _linear(spot, biased=True)) is None:
        return None
    return Planting(path, lambda: spot.module(path).bias.data.zero_())


def other_weights(spot: Spot) -> Planting | None:
    """A weight that belongs elsewhere: the rows stand in no order."""
    path = _linear(spot)
    weight = spot.module(path).weight if path else None
    if path is None or weight is None:
        return None
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(int(spot.rng.integers(1 << 30))))
    return Planting(path, lambda: weight.data.copy_(noise * weight.data.float().std()))


def wrong_scale(spot: Spot) -> Planting | None:
    """A matrix product times a factor that should not be there, or without one that should."""
    if (path := _linear(spot)) is None:
        return None
    factor = float(spot.rng.choice([0.25, 0.5, 0.9, 1.1, 2.0, 8.0, 1.01, -1.0]))
    return Planting(path, change_output(spot.module(path), lambda y: y * factor))


def bf16_inside(spot: Spot) -> Planting | None:
    """A matrix product computed in bfloat16 in a float32 model."""
    path = _linear(spot)
    if path is None or spot.tiny.dtype != "float32" or type(spot.module(path)) is not nn.Linear:
        return None
    module = spot.module(path)

    def forward(x: Any) -> Any:
        bias = None if module.bias is None else module.bias.bfloat16()
        return nn.functional.linear(x.bfloat16(), module.weight.bfloat16(), bias).float()

    return Planting(path, lambda: replace_forward(module, lambda _: forward))


def odd_values(spot: Spot) -> Planting | None:
    """NaN or infinity: one element, one token, or all."""
    if (path := _linear(spot)) is None:
        return None
    value, where = float(spot.rng.choice([torch.nan, torch.inf])), int(spot.rng.integers(3))
    token = int(spot.rng.integers(24))

    def change(y: Any) -> Any:
        y = y.clone()
        part = (y[..., token : token + 1, :3], y[..., token, :], y)[where]
        part[...] = value
        return y

    return Planting(path, change_output(spot.module(path), change))


def truncated_head(spot: Spot) -> Planting | None:
    """The last head of a projection was not loaded."""
    paths = spot.tiny.within(spot.block, r"(q_proj|v_proj|k_proj|query|value|key):")
    if (path := spot.one_of(paths)) is None:
        return None
    module = spot.module(path)

    def plant() -> None:
        module.weight.data[-16:] = 0
        if module.bias is not None:
            module.bias.data[-16:] = 0

    return Planting(path, plant)


def interleaved_weight(spot: Spot) -> Planting | None:
    """A projection whose rows stand in the other order of rope."""
    paths = spot.tiny.within(spot.block, r"(q_proj|k_proj):")
    if (path := spot.one_of(paths)) is None:
        return None
    module = spot.module(path)

    def turned(rows: Any) -> Any:
        return rows.reshape(-1, 2, 8, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape).clone()

    def plant() -> None:
        module.weight.data.copy_(turned(module.weight.data))
        if module.bias is not None:
            module.bias.data.copy_(turned(module.bias.data))

    return Planting(path, plant)


def swapped_halves(spot: Spot) -> Planting | None:
    """A fused projection whose parts stand in the other order: gate and up, q and k."""
    paths = spot.tiny.within(spot.block, r"(gate_up_proj|qkv_proj|c_attn):")
    if (path := spot.one_of(paths)) is None:
        return None
    blocks = {"gate_up_proj": [1, 0], "c_attn": [1, 0, 2], "qkv_proj": [0, 2, 1]}[path.rpartition(".")[2]]
    widths = {"qkv_proj": [64, 32, 32]}.get(path.rpartition(".")[2])

    def change(y: Any) -> Any:
        parts = y.split(widths or y.shape[-1] // len(blocks), -1)
        return torch.cat([parts[at] for at in blocks], -1)

    return Planting(path, change_output(spot.module(path), change))


def embedding_scale(spot: Spot) -> Planting | None:
    """The scale of the embeddings is lost, or is there when it should not be."""
    if (path := _embedding(spot)) is None:
        return None
    factor = 64**-0.5 if spot.tiny.arch.name == "gemma3" else 8.0
    return Planting(path, change_output(spot.module(path), lambda y: y * factor))


def wrong_token(spot: Spot) -> Planting | None:
    """One token is looked up as another."""
    if (path := _embedding(spot)) is None:
        return None
    at, module = int(spot.rng.integers(spot.tiny.ids.shape[1])), spot.module(path)

    def made(forward: Any) -> Any:
        def run(ids: Any) -> Any:
            ids = ids.clone()
            ids[:, at] = (ids[:, at] + 1) % 128
            return forward(ids)

        return run

    return Planting(path, lambda: replace_forward(module, made))


def _embedding(spot: Spot) -> str | None:
    names = [name for name, module in spot.tiny.model.named_modules() if isinstance(module, nn.Embedding)]
    return next((name for name in names if "position" not in name and "wpe" not in name), None)
