"""The caches of transformers: what their layers hold, by name, and how to replace it or build a new cache.

Caches are recognized by their attributes, so that transformers need not be imported. A layer of a cache may hold keys
and values, the states of a linear attention, or both. A decoder with cross-attention has two caches in one; what the
second holds has names with the prefix ``cross_``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from tensordiff.errors import CaptureError

_HELD = {
    "keys": "key", "values": "value", "conv_states": "conv_states", "recurrent_states": "recurrent_states",
    "indexer_keys": "indexer_key",
}  # fmt: skip
CROSS = "cross_"
NAMES = tuple(half + name for half in ("", CROSS) for name in _HELD.values())
"""All names of tensors that a layer of a cache may hold."""
States = Mapping[str, Tensor]
"""What one layer of a cache holds, by name."""


def is_cache(value: Any) -> bool:
    """Whether this is a transformers cache."""
    return type(value).__name__.endswith("Cache") and (hasattr(value, "layers") or _is_double(value))


def _is_double(cache: Any) -> bool:
    return hasattr(cache, "self_attention_cache") and hasattr(cache, "cross_attention_cache")


def _halves(cache: Any) -> Iterator[tuple[str, Any]]:
    if _is_double(cache):
        yield "", cache.self_attention_cache
        yield CROSS, cache.cross_attention_cache
    else:
        yield "", cache


def layers_of(cache: Any) -> range:
    """The numbers of a cache's layers."""
    return range(max(len(half.layers) for _, half in _halves(cache)))


def states(cache: Any, number: int) -> dict[str, Tensor]:
    """What one layer of a cache holds."""
    return {
        prefix + name: held
        for prefix, half in _halves(cache)
        if number < len(half.layers)
        for attribute, name in _HELD.items()
        if isinstance(held := getattr(half.layers[number], attribute, None), Tensor) and held.numel()
    }


def is_filled(cache: Any, number: int | None) -> bool:
    """Whether a layer of a cache holds anything; any layer, if ``number`` is None."""
    return any(states(cache, one) for one in (layers_of(cache) if number is None else (number,)))


def fill(cache: Any, number: int, put: States) -> None:
    """Replace tensors that a layer holds."""
    for prefix, half in _halves(cache):
        for attribute, name in _HELD.items():
            if prefix + name in put:
                setattr(half.layers[number], attribute, put[prefix + name])


def rebuilt(kind: str, held: Mapping[int, States], config: Any) -> Any:
    """A new cache that holds these tensors; raises ``CaptureError`` if its kind cannot be built."""
    try:
        from transformers import DynamicCache, EncoderDecoderCache
    except ImportError as error:
        raise CaptureError(f"a {kind} is made by transformers, which is not there") from error
    if kind == "EncoderDecoderCache":
        return EncoderDecoderCache(
            _with(DynamicCache(config=config), {number: _half(one, "") for number, one in held.items()}),
            _with(DynamicCache(config=config), {number: _half(one, CROSS) for number, one in held.items()}),
        )
    if kind != "DynamicCache":
        raise CaptureError(f"what else a {kind} holds is not in a dump")
    return _with(DynamicCache(config=config), held)


def _half(held: States, prefix: str) -> dict[str, Tensor]:
    whole = {name: state for name, state in held.items() if name.startswith(CROSS) == bool(prefix)}
    return {name.removeprefix(prefix): state for name, state in whole.items()}


def _with(cache: Any, held: Mapping[int, States]) -> Any:
    """Fill the layers of a cache as a model does."""
    from transformers.cache_utils import DynamicLayer

    for number, one in held.items():
        while len(cache.layers) <= number:
            cache.layers.append(DynamicLayer())
        _update(cache.layers[number], one)
    _lengthen(cache, held)
    return cache


def _update(layer: Any, held: States) -> None:
    if ("key" in held) != ("value" in held):
        raise CaptureError("of keys and values in its cache only one was written")
    if "key" in held:
        layer.update(held["key"], held["value"])
    if "conv_states" in held:
        layer.update_conv_state(held["conv_states"])
    if "recurrent_states" in held:
        layer.update_recurrent_state(held["recurrent_states"])
    if "indexer_key" in held:
        layer.update_indexer(held["indexer_key"])


def _lengthen(cache: Any, held: Mapping[int, States]) -> None:
    """Set how many tokens went through layers that keep only a window. A layer replayed alone does not need it."""
    lengths = {number: one["key"].shape[-2] for number, one in held.items() if "key" in one}
    sliding = [number for number in lengths if getattr(cache.layers[number], "is_sliding", False)]
    whole = [lengths[number] for number in lengths if number not in sliding]
    for number in sliding if len(lengths) > 1 else ():
        layer = cache.layers[number]
        if not whole and lengths[number] >= layer.sliding_window - 1:
            raise CaptureError("how much went through a cache that keeps only a window is not in a dump")
        layer.cumulative_length = max([*whole, lengths[number]])
