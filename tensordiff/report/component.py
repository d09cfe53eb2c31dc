"""Which part of a network a layer belongs to, by the words people use for them."""

from __future__ import annotations

import re
from functools import lru_cache

_COMPONENTS = (
    ("norm", re.compile(r"norm(?:\d|_|\b)|(?:^|[._])ln_?[\w]*$", re.I)),
    ("attention", re.compile(r"attn|attention|(?:^|\.)[qkvo]_?proj|qkv|rotary|rope", re.I)),
    ("mlp", re.compile(r"mlp|feed_?forward|ffn|expert|intermediate|act_fn|(?:^|\.)(?:fc\d|gate|up|down)\b", re.I)),
    ("embedding", re.compile(r"embed|(?:^|\.)w[tp]e$", re.I)),
    ("head", re.compile(r"(?:^|\.)(?:lm_)?head|pooler|classifier|logits", re.I)),
    ("block", re.compile(r"(?:^|\.)(?:layers?|blocks?|h)\.\d+$")),
)  # fmt: skip


@lru_cache(maxsize=1 << 16)
def component(layer: str) -> str:
    """Attention, mlp, norm, embedding, head, block, or other; the last part of the name counts first."""
    last = layer.rpartition(".")[2]
    for text in (last, layer):
        for name, pattern in _COMPONENTS:
            if pattern.search(text):
                return name
    return "other"
