"""A Llama written by hand, as someone brings one up on an engine of their own, in numpy.

Nothing is named as in transformers: tokens have no batch, key and value are one projection, rope turns the heads in
a function of its own, blocks count from 1. ``bug_in`` makes rope turn the wrong way in one block.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]


class HandPort:
    """The model; ``seen`` has what each step gave, in order."""

    def __init__(self, weights: Mapping[str, Values], *, heads: int, groups: int, bug_in: int | None = None) -> None:
        self.weights, self.heads, self.groups, self.bug_in = weights, heads, groups, bug_in
        self.seen: dict[str, Values] = {}

    def see(self, name: str, value: Values) -> Values:
        self.seen[name] = np.ascontiguousarray(value, np.float32)
        return self.seen[name]

    def __call__(self, ids: list[int], layers: int) -> Values:
        x = self.see("net.table", self.weights["model.embed_tokens.weight"][ids])
        for i in range(layers):
            x = self.block(i, x)
        x = self.see("net.last_scale", self.scale(x, "model.norm.weight"))
        return self.see("net.vocab", x @ self.weights["lm_head.weight"].T)

    def block(self, i: int, x: Values) -> Values:
        at, names = f"net.blk{i + 1:02d}", f"model.layers.{i}"
        h = self.see(f"{at}.scale_a", self.scale(x, f"{names}.input_layernorm.weight"))
        q = self.see(f"{at}.att.wq", h @ self.linear(f"{names}.self_attn.q_proj"))
        both = [self.linear(f"{names}.self_attn.{part}_proj") for part in ("k", "v")]
        kv = self.see(f"{at}.att.wkv", h @ np.concatenate(both, 1))
        mixed = self.see(f"{at}.att.mixed", self.attend(i, q, kv))
        x = x + self.see(f"{at}.att.wo", mixed @ self.linear(f"{names}.self_attn.o_proj"))
        h = self.see(f"{at}.scale_b", self.scale(x, f"{names}.post_attention_layernorm.weight"))
        gate = self.see(f"{at}.ff.w1", h @ self.linear(f"{names}.mlp.gate_proj"))
        up = self.see(f"{at}.ff.w3", h @ self.linear(f"{names}.mlp.up_proj"))
        x = x + self.see(f"{at}.ff.w2", (gate / (1 + np.exp(-gate)) * up) @ self.linear(f"{names}.mlp.down_proj"))
        return self.see(at, x)

    def linear(self, name: str) -> Values:
        return self.weights[f"{name}.weight"].T

    def scale(self, x: Values, name: str) -> Values:
        return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * self.weights[name], np.float32)

    def attend(self, i: int, q: Values, kv: Values) -> Values:
        tokens, width = q.shape
        size = width // self.heads
        query = self.turn(i, q.reshape(tokens, self.heads, size))
        key, value = (part.reshape(tokens, self.groups, size) for part in np.split(kv, 2, 1))
        key, value = (np.repeat(part, self.heads // self.groups, 1) for part in (self.turn(i, key), value))
        scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(size)
        scores = np.where(np.tril(np.ones((tokens, tokens), bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.asarray(np.einsum("hqk,khd->qhd", weights, value).reshape(tokens, width), np.float32)

    def turn(self, i: int, x: Values) -> Values:
        """Rope; in the block with the bug the second half has the wrong sign."""
        half = x.shape[-1] // 2
        angle = np.arange(len(x))[:, None] / 10_000 ** (np.arange(half) / half)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None] * (-1 if i == self.bug_in else 1)
        a, b = x[..., :half], x[..., half:]
        return np.asarray(np.concatenate([a * cos - b * sin, b * cos + a * sin], -1), np.float32)
