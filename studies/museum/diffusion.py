"""A small diffusion transformer: what denoises an image by a timestep, written out as such models are."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

WIDTH, HEADS = 64, 4


class Timesteps(nn.Module):  # type: ignore[misc]
    """A timestep as cosines and sines of many frequencies."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.is_cosine_first = True

    def forward(self, timestep: Any) -> Any:
        """[batch] to [batch, width]."""
        half = self.width // 2
        frequencies = torch.exp(-math.log(10000.0) * torch.arange(half, dtype=torch.float32) / half)
        angles = timestep.float()[:, None] * frequencies
        parts = (angles.cos(), angles.sin()) if self.is_cosine_first else (angles.sin(), angles.cos())
        return torch.cat(parts, -1)


class TimestepEmbedding(nn.Module):  # type: ignore[misc]
    """What the blocks are modulated by."""

    def __init__(self) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(WIDTH, WIDTH)
        self.act = nn.SiLU()
        self.linear_2 = nn.Linear(WIDTH, WIDTH)

    def forward(self, sample: Any) -> Any:
        """[batch, width] to the same."""
        return self.linear_2(self.act(self.linear_1(sample)))


class Attention(nn.Module):  # type: ignore[misc]
    """Every patch sees every other."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, hidden_states: Any) -> Any:
        """[batch, patches, width] to the same."""
        q, k, v = (
            part(hidden_states).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.to_q, self.to_k, self.to_v)
        )
        weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).float().softmax(-1).to(q.dtype)
        return self.to_out((weights @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):  # type: ignore[misc]
    """Attention and a feed-forward part, each shifted, scaled and gated by the timestep."""

    def __init__(self) -> None:
        super().__init__()
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH))
        self.norm1 = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.attn = Attention()
        self.norm2 = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.ff = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, hidden_states: Any, embedding: Any) -> Any:
        """[batch, patches, width] to the same."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(embedding)[:, None].chunk(6, -1)
        hidden_states = hidden_states + gate1 * self.attn(self.norm1(hidden_states) * (1 + scale1) + shift1)
        return hidden_states + gate2 * self.ff(self.norm2(hidden_states) * (1 + scale2) + shift2)


class DiffusionTransformer(nn.Module):  # type: ignore[misc]
    """Patches of a noisy image and a timestep, to the noise in it."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(4, WIDTH, 2, 2)
        self.time_proj = Timesteps(WIDTH)
        self.time_embedding = TimestepEmbedding()
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.norm_out = nn.LayerNorm(WIDTH)
        self.proj_out = nn.Linear(WIDTH, 16)

    def forward(self, sample: Any, timestep: Any) -> Any:
        """[batch, 4, height, width] to [batch, patches, 16]."""
        hidden_states = self.patch_embed(sample).flatten(2).transpose(1, 2)
        embedding = self.time_embedding(self.time_proj(timestep).to(sample.dtype))
        for block in self.blocks:
            hidden_states = block(hidden_states, embedding)
        return self.proj_out(self.norm_out(hidden_states))
