"""The model that ``tensordiff doctor`` captures on the CPU and on each GPU: ``py:self_check.py:cuda_1``.

It is small, and has one of each operation that GPUs compute in their own way: matrix products, attention, norms, a
convolution, an activation, a softmax.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class SelfCheck(nn.Module):  # type: ignore[misc]  # torch has no types here
    """A transformer block over patches of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 4, stride=4)
        self.norm = nn.LayerNorm(64)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.up, self.act, self.down = nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)
        self.head = nn.Linear(64, 100)

    def forward(self, picture: Tensor) -> Tensor:
        """Probabilities of a hundred classes."""
        x = self.patches(picture).flatten(2).transpose(1, 2)
        q, k, v = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.down(self.act(self.up(self.norm(x))))
        return torch.softmax(self.head(x), -1)


def on(device: str) -> tuple[nn.Module, tuple[Tensor]]:
    """The model and its input on a device, with the same values on each; in float32, without TF32."""
    torch.manual_seed(0)
    model, picture = SelfCheck().eval(), torch.rand(1, 3, 32, 32)
    return model.to(device), (picture.to(device),)


def __getattr__(name: str) -> Any:
    """``cpu``, ``mps``, ``cuda_0``, ``cuda_1``: a function for each device."""
    if name in ("cpu", "mps") or (name.startswith("cuda_") and name.removeprefix("cuda_").isdecimal()):
        return partial(on, name.replace("_", ":"))
    raise AttributeError(name)
