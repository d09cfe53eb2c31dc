"""How large a dump will be, before anything is run: a guess from the modules and the first inputs.

A transformer's tensors are tokens times features; what eager attention gives beside them is heads times tokens
squared. Right within a factor of three or so, which is enough to refuse in time.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from tensordiff.capture.children.facts import dtype_of
from tensordiff.capture.children.hooks import ROOT, Selection
from tensordiff.capture.children.program import Step
from tensordiff.capture.children.tensors import find_arguments


def estimate(step: Step, steps: int, selection: Selection) -> int:
    """Bytes that a run will write, roughly."""
    tokens = _tokens(step)
    item: int = getattr(torch, dtype_of(step.model)).itemsize
    width = _width(step.model)
    features = 0
    for name, module in step.model.named_modules():
        if selection.takes(f"{ROOT}.{name}" if name else ROOT, module):
            gives, takes = _features(module, width)
            features += gives + (takes if selection.inputs else 0)
            features += _attention(module, tokens)
    return features * (tokens + steps - 1) * item


def _tokens(step: Step) -> int:
    """How many rows of features run through the model."""
    tensors = find_arguments(step.args, step.kwargs).tensors
    counts: list[int] = [_rows(tensor, step.model) for tensor in tensors.values()]
    return max(counts, default=1)


def _rows(tensor: Tensor, model: nn.Module) -> int:
    if not tensor.is_floating_point():
        return int(tensor.numel())
    if tensor.dim() == 4:  # pixels: a row for each patch
        patch = _number(model, "patch_size") or 16
        patches: int = math.ceil(tensor.shape[0] * tensor.shape[-1] * tensor.shape[-2] / patch**2)
        return patches
    return math.prod(int(length) for length in tensor.shape[:-1]) or 1


def _width(model: nn.Module) -> int:
    """Features of what flows between modules."""
    if found := _number(model, "hidden_size"):
        return found
    return max((weight.shape[-1] for weight in model.parameters() if weight.dim() > 1), default=1)


def _number(model: nn.Module, name: str) -> int | None:
    config: Any = getattr(model, "config", None)
    found = getattr(config, name, None) or getattr(getattr(config, "text_config", None), name, None)
    return found if isinstance(found, int) else None


def _features(module: nn.Module, width: int) -> tuple[int, int]:
    """What a module gives and takes for a token."""
    if isinstance(module, nn.Linear):
        return module.out_features, module.in_features
    if isinstance(module, nn.Embedding):
        return module.embedding_dim, 2
    return width, width


def _attention(module: nn.Module, tokens: int) -> int:
    """The weights that eager attention gives beside its output, for a token."""
    config: Any = getattr(module, "config", None)
    heads = getattr(config, "num_attention_heads", None)
    is_attention = "attention" in type(module).__name__.lower() and not any(
        "attention" in type(child).__name__.lower() for child in module.children()
    )
    eager = getattr(config, "_attn_implementation", None) == "eager"
    return heads * tokens if is_attention and eager and isinstance(heads, int) else 0
