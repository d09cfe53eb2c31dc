"""Bugs inside attention, between its projections: rope, mask, scale, heads, positions."""

from __future__ import annotations

from typing import Any

import torch

from studies.bugs.spot import Planting, Spot, change_globals, has_global


def rope_theta(spot: Spot) -> Planting | None:
    """Another base of rope."""
    base = float(spot.rng.choice([1e2, 5e5, 1e6]))
    return _with_positions(spot, lambda cos, _: _turned(cos, base))


def rope_scale(spot: Spot) -> Planting | None:
    """Positions taken at half or twice their distance."""
    by = float(spot.rng.choice([0.5, 2.0]))
    return _with_positions(spot, lambda cos, _: _turned(cos, 1e4, by))


def dropped_position(spot: Spot) -> Planting | None:
    """One token is thought to stand at the beginning."""
    at = int(spot.rng.integers(2, 24))

    def change(cos: Any, sin: Any) -> tuple[Any, Any]:
        cos, sin = cos.clone(), sin.clone()
        cos[:, at], sin[:, at] = cos[:, 0], sin[:, 0]
        return cos, sin

    return _with_positions(spot, change)


def _turned(like: Any, base: float, by: float = 1.0) -> tuple[Any, Any]:
    half = like.shape[-1] // 2
    angles = by * torch.arange(like.shape[-2])[:, None] * base ** (-torch.arange(half) / half)
    whole = torch.cat((angles, angles), -1)[None]
    return whole.cos().to(like.dtype), whole.sin().to(like.dtype)


def _with_positions(spot: Spot, change: Any) -> Planting | None:
    module = spot.module(spot.attention)
    if not has_global(module, "apply_rotary_pos_emb"):
        return None

    def made(rope: Any) -> Any:
        return lambda q, k, cos, sin, *rest, **named: rope(q, k, *change(cos, sin), *rest, **named)

    return Planting(spot.attention, change_globals(module, apply_rotary_pos_emb=made))


def rope_order(spot: Spot) -> Planting | None:
    """Neighbouring channels are turned with one another instead of the halves."""
    module = spot.module(spot.attention)
    if not has_global(module, "rotate_half"):
        return None

    def rotated(_: Any) -> Any:
        def run(x: Any) -> Any:
            pairs = x.reshape(*x.shape[:-1], -1, 2)
            return torch.stack((-pairs[..., 1], pairs[..., 0]), -1).reshape(x.shape)

        return run

    def made(rope: Any) -> Any:
        def run(q: Any, k: Any, cos: Any, sin: Any, *rest: Any, **named: Any) -> Any:
            half = cos.shape[-1] // 2
            twice = [side[..., :half].repeat_interleave(2, -1) for side in (cos, sin)]
            return rope(q, k, *twice, *rest, **named)

        return run

    return Planting(spot.attention, change_globals(module, rotate_half=rotated, apply_rotary_pos_emb=made))


def rope_missing(spot: Spot) -> Planting | None:
    """Keys are not turned."""
    module = spot.module(spot.attention)
    if not has_global(module, "apply_rotary_pos_emb"):
        return None

    def made(rope: Any) -> Any:
        return lambda q, k, *rest, **named: (rope(q, k, *rest, **named)[0], k)

    return Planting(spot.attention, change_globals(module, apply_rotary_pos_emb=made))


def kv_repeat(spot: Spot) -> Planting | None:
    """Key heads in turns where each should be repeated."""
    module = spot.module(spot.attention)
    if getattr(module, "num_key_value_groups", 1) < 2:
        return None
    return Planting(spot.attention, change_globals(module, repeat_kv=lambda _: lambda x, n: x.repeat(1, n, 1, 1)))


def attention_scale(spot: Spot) -> Planting | None:
    """Scores with another scale."""
    module, by = spot.module(spot.attention), float(spot.rng.choice([0.25, 0.5, 4.0, 1.1]))

    def plant() -> None:
        module.scaling *= by

    return Planting(spot.attention, plant)


def swapped_q_k(spot: Spot) -> Planting | None:
    """Queries serve as keys and keys as queries."""
    module = spot.module(spot.attention)

    def made(attend: Any) -> Any:
        def run(module: Any, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> Any:
            groups = query.shape[1] // key.shape[1]
            keys, few = key.repeat_interleave(groups, 1), query.reshape(len(query), -1, groups, *query.shape[2:])
            return attend(module, keys, few[:, :, 0], value, *rest, **named)

        return run

    return Planting(spot.attention, change_globals(module, eager_attention_forward=made))


def mask_missing(spot: Spot) -> Planting | None:
    """Every token sees those after it."""
    return _with_mask(spot, lambda mask: torch.zeros_like(mask))


def mask_off_by_one(spot: Spot) -> Planting | None:
    """Every token sees the next one."""

    def change(mask: Any) -> Any:
        mask = mask.clone()
        places = torch.arange(mask.shape[-1] - 1)
        mask[..., places, places + 1] = 0
        return mask

    return _with_mask(spot, change)


def short_window(spot: Spot) -> Planting | None:
    """Tokens that are further away than a few are not seen."""
    far = int(spot.rng.choice([4, 8, 12]))

    def change(mask: Any) -> Any:
        away = torch.arange(mask.shape[-2])[:, None] - torch.arange(mask.shape[-1])
        return mask.masked_fill(away >= far, torch.finfo(mask.dtype).min)

    return _with_mask(spot, change)


def _with_mask(spot: Spot, change: Any) -> Planting | None:
    """Change the mask where it is used, after all that could see it."""
    if not spot.tiny.arch.is_causal:
        return None
    module = spot.module(spot.attention)

    def made(attend: Any) -> Any:
        def run(module: Any, query: Any, key: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
            return attend(module, query, key, value, change(mask), *rest, **named)

        return run

    return Planting(spot.attention, change_globals(module, eager_attention_forward=made))


def lost_head(spot: Spot) -> Planting | None:
    """What one head gives is lost."""
    head, module = int(spot.rng.integers(4)), spot.module(spot.attention)

    def made(attend: Any) -> Any:
        def run(*args: Any, **named: Any) -> Any:
            found, weights = attend(*args, **named)
            found = found.clone()
            found[:, :, head] = 0
            return found, weights

        return run

    return Planting(spot.attention, change_globals(module, eager_attention_forward=made))


def heads_out_of_order(spot: Spot) -> Planting | None:
    """Heads and tokens are not put back in their places before the projection."""
    module = spot.module(spot.attention)

    def made(attend: Any) -> Any:
        def run(*args: Any, **named: Any) -> Any:
            found, weights = attend(*args, **named)
            return found.transpose(1, 2).contiguous().view(found.shape), weights

        return run

    return Planting(spot.attention, change_globals(module, eager_attention_forward=made))
