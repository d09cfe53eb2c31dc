"""One pass of a small Llama in numpy, as a tool would see it: whole, or as the ranks of a distributed run hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tensordiff.dump.dtypes import Array

HIDDEN, INNER, VOCABULARY, TOKENS, HEAD, HEADS, KV_HEADS, BLOCKS = 32, 48, 64, 6, 8, 4, 2, 2
CULPRIT = "layers.1.mlp.act_fn"
"""Where the buggy run computes gelu instead of silu."""

Port = tuple[str, str]
"""A layer and one of its inputs or outputs."""
Weights = Mapping[str, Array]
COLUMN = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "act_fn", "lm_head")
"""Layers whose outputs each rank holds a part of."""
ROW = ("o_proj", "down_proj")
"""Layers of which each rank takes a part, and gives a summand."""


@dataclass(frozen=True)
class TinyRun:
    """What every layer took and gave, in execution order."""

    tensors: dict[Port, Array]
    weights: Weights

    @property
    def outputs(self) -> dict[str, Array]:
        """Outputs by layer."""
        return {layer: array for (layer, port), array in self.tensors.items() if port == "output"}

    def named(self) -> dict[str, Array]:
        """By the names that our own captures give."""
        return {f"{layer}-{port}": array for (layer, port), array in self.tensors.items()}

    def part(self, at: Port, rank: int, ranks: int, *, sums: bool = False) -> Array:
        """What one rank of a tensor-parallel run holds; ``sums`` before the ranks' summands are added."""
        layer, port = at
        array, last = self.tensors[at], layer.rpartition(".")[2]
        is_input = port != "output"
        if (last in COLUMN and not is_input) or (is_input and last in (*ROW, "act_fn")):
            return split(array, -1, rank, ranks)
        if sums and last in ROW:
            inputs = split(self.tensors[layer, "input_0"], -1, rank, ranks)
            return np.asarray(inputs @ split(self.weights[layer], 0, rank, ranks))
        return array

    def split_of(self, at: Port) -> Literal["columns", "whole"]:
        """Whether ranks hold parts of a tensor."""
        return "columns" if self.part(at, 0, 2).shape != self.tensors[at].shape else "whole"


def split(array: Array, axis: int, rank: int, ranks: int) -> Array:
    return np.ascontiguousarray(np.array_split(array, ranks, axis=axis)[rank])


def weights(seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)

    def linear(inputs: int, outputs: int) -> Array:
        return np.asarray(rng.standard_normal((inputs, outputs)) / np.sqrt(inputs), dtype=np.float32)

    made = {"model.embed_tokens": linear(VOCABULARY, HIDDEN) * 4, "lm_head": linear(HIDDEN, VOCABULARY)}
    for i in range(BLOCKS):
        block = f"model.layers.{i}"
        for name, width in (("q_proj", HEADS * HEAD), ("k_proj", KV_HEADS * HEAD), ("v_proj", KV_HEADS * HEAD)):
            made[f"{block}.self_attn.{name}"] = linear(HIDDEN, width)
        made[f"{block}.self_attn.o_proj"] = linear(HEADS * HEAD, HIDDEN)
        made |= {f"{block}.mlp.{name}_proj": linear(HIDDEN, INNER) for name in ("gate", "up")}
        made[f"{block}.mlp.down_proj"] = linear(INNER, HIDDEN)
    return made


def tiny_run(*, bug: bool = False, seed: int = 0, tokens: int = TOKENS) -> TinyRun:
    """A pass over tokens chosen by the seed; the weights are always the same."""
    held = weights()
    ids = np.random.default_rng(100 + seed).integers(0, VOCABULARY, (1, tokens))
    seen: dict[Port, Array] = {("model.embed_tokens", "input_0"): ids}
    x = seen["model.embed_tokens", "output"] = held["model.embed_tokens"][ids]

    def linear(layer: str, value: Array) -> Array:
        seen[layer, "input_0"] = value
        seen[layer, "output"] = value @ held[layer]
        return seen[layer, "output"]

    def norm(layer: str, value: Array) -> Array:
        seen[layer, "input_0"] = value
        seen[layer, "output"] = value / np.sqrt((value**2).mean(-1, keepdims=True) + 1e-6)
        return seen[layer, "output"]

    for i in range(BLOCKS):
        block = f"model.layers.{i}"
        seen[block, "input_0"] = x
        hidden = norm(f"{block}.input_layernorm", x)
        seen[f"{block}.self_attn", "input_0"] = hidden
        q, k, v = (linear(f"{block}.self_attn.{name}_proj", hidden) for name in "qkv")
        x = x + linear(f"{block}.self_attn.o_proj", _attention(q, k, v))
        seen[f"{block}.self_attn", "output"] = seen[f"{block}.self_attn.o_proj", "output"]
        hidden = norm(f"{block}.post_attention_layernorm", x)
        seen[f"{block}.mlp", "input_0"] = hidden
        gate = linear(f"{block}.mlp.gate_proj", hidden)
        seen[f"{block}.mlp.act_fn", "input_0"] = gate
        active = _gelu(gate) if bug and f"{block}.mlp.act_fn".endswith(CULPRIT) else gate / (1 + np.exp(-gate))
        seen[f"{block}.mlp.act_fn", "output"] = active
        up = linear(f"{block}.mlp.up_proj", hidden)
        seen[f"{block}.mlp", "output"] = linear(f"{block}.mlp.down_proj", active * up)
        x = seen[block, "output"] = x + seen[f"{block}.mlp", "output"]
    linear("lm_head", norm("model.norm", x))
    return TinyRun(seen, held)


def _attention(q: Array, k: Array, v: Array) -> Array:
    tokens = q.shape[1]
    heads = q.reshape(tokens, HEADS, HEAD)
    keys, values = (np.repeat(x.reshape(tokens, KV_HEADS, HEAD), HEADS // KV_HEADS, axis=1) for x in (k, v))
    scores = np.einsum("thd,shd->hts", heads, keys) / np.sqrt(HEAD)
    scores = np.where(np.tri(tokens, dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return np.asarray(np.einsum("hts,shd->thd", shares, values).reshape(1, tokens, -1), dtype=np.float32)


def _gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))), dtype=x.dtype)
