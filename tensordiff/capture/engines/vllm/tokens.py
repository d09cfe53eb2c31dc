"""The tokens that vLLM's sampler gives: those that were settled before, whatever the logits say."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import LogitsProcessor


class SettledTokens(LogitsProcessor):  # type: ignore[misc]
    """Makes one token the likeliest by far. vLLM makes the instance, so what it is to do is kept at the class."""

    token: ClassVar[int | None] = None
    """What the step under way is to give; None leaves it to the logits."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        """Takes what vLLM gives, and needs none of it."""

    def apply(self, logits: Tensor) -> Tensor:
        """Called with the logits of the last token, after the model."""
        if self.token is None:
            return logits
        settled = torch.full_like(logits, float("-inf"))
        settled[:, self.token] = 0.0
        return settled

    def is_argmax_invariant(self) -> bool:
        """It changes the likeliest token: that is what it is for."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """There is one request at a time, and no state of its own."""
