"""What a token may see: windows, chunks, padding, and masks laid along the wrong axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from studies.bugs.spot import change_globals
from studies.museum.architectures import GEMMA2, LLAMA, MISTRAL
from studies.museum.exhibit import Exhibit
from studies.museum.exhibits.rope import attentions
from studies.museum.questions import chunks, few_at_once, padded_left

Attend = Callable[..., Any]


def _attending(model: Any, change: Callable[[Attend, Any, Any, Any, Any, Any], Any]) -> None:
    """Let attention be computed otherwise, where its arguments are those that all can see."""

    def made(attend: Attend) -> Attend:
        def run(module: Any, query: Any, key: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
            def go(key: Any, value: Any, mask: Any) -> Any:
                return attend(module, query, key, value, mask, *rest, **named)

            return change(go, module, query, key, value, mask)

        return run

    for attention in attentions(model):
        change_globals(attention, eager_attention_forward=made)()


def _causal(query: Any, keys: int, offset: int, far: int | None = None) -> Any:
    """A mask in which a query at ``offset`` and later sees what is no further back than ``far``."""
    length = query.shape[-2]
    away = torch.arange(offset, offset + length)[:, None] - torch.arange(keys)
    seen = (away >= 0) & (away < far) if far else away >= 0
    hidden = torch.full(seen.shape, torch.finfo(query.dtype).min, dtype=query.dtype)
    return hidden.masked_fill(seen, 0.0)[None, None]


def _one_more(model: Any) -> None:
    def change(go: Attend, module: Any, query: Any, key: Any, value: Any, _: Any) -> Any:
        return go(key, value, _causal(query, key.shape[-2], 0, module.config.sliding_window + 1))

    _attending(model, change)


def _as_if_empty(model: Any) -> None:
    def change(go: Attend, _: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:
        is_first = query.shape[-2] == key.shape[-2]
        return go(key, value, mask if is_first else _causal(query, key.shape[-2], 0))

    _attending(model, change)


def _never_evicted(model: Any) -> None:
    """Every key that ever was is kept, and seen by tokens that come several at once."""
    kept: dict[int, tuple[Any, Any]] = {}

    def change(go: Attend, module: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:
        length, before = query.shape[-2], kept.get(module.layer_idx)
        new = [side[..., -length:, :] for side in (key, value)]
        keys, values = new if before is None else (torch.cat(pair, -2) for pair in zip(before, new, strict=True))
        kept[module.layer_idx] = keys, values
        if before is None:
            return go(key, value, mask)
        return go(keys, values, _causal(query, keys.shape[-2], keys.shape[-2] - length))

    _attending(model, change)


def _along_heads(model: Any) -> None:
    """The mask of a row of the batch is laid over the key heads of that number."""

    def change(go: Attend, module: Any, _: Any, key: Any, value: Any, mask: Any) -> Any:
        return go(key, value, mask[:, 0].repeat_interleave(module.num_key_value_groups, 0)[None])

    _attending(model, change)


_WINDOW = ("from_token", "grows_with_position", "later_tokens", "mask")
EXHIBITS = (
    Exhibit(
        "window_one_too_long", ("huggingface/transformers#39408", "ml-explore/mlx-lm#390"),
        "the sliding window holds one key too many", MISTRAL, ("model.layers.0.self_attn",), _one_more, _WINDOW,
    ),
    Exhibit(
        "chunk_masked_as_first", ("pytorch/executorch#21749", "onnx/onnx#8068"),
        "a chunk after the first is masked as if the cache were empty", LLAMA, ("model.layers.0.self_attn",),
        _as_if_empty, ("chunk_boundary", "mask"), chunks, step=1,
    ),
    Exhibit(
        "cache_never_evicts", ("ml-explore/mlx-lm#1914",),
        "a rotating cache evicts nothing when several tokens come at once", MISTRAL, ("model.layers.0.self_attn",),
        _never_evicted, ("chunk_boundary", "mask"), few_at_once, step=1,
    ),
    Exhibit(
        "mask_along_heads", ("ml-explore/mlx-lm#1903",),
        "the mask is broadcast over heads where the batch is as large as the number of key heads", GEMMA2,
        ("model.layers.0.self_attn",), _along_heads, ("up_to_token", "one_head", "mask", "falls_with_position"),
        padded_left,
    ),
)  # fmt: skip
