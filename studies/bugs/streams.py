"""Bugs in what a block does between its parts, and in how experts are chosen."""

from __future__ import annotations

from typing import Any

import torch

from studies.bugs.spot import Planting, Spot, change_handed_on, change_output, replace_forward


def residual_lost(spot: Spot) -> Planting | None:
    """What an attention or an mlp gives replaces the stream instead of being added to it."""
    return _residual(spot, lambda y, stream: y - stream)


def residual_twice(spot: Spot) -> Planting | None:
    """The stream is added twice."""
    return _residual(spot, lambda y, stream: y + stream)


def residual_scale(spot: Spot) -> Planting | None:
    """What is added is scaled on the way."""
    factor = float(spot.rng.choice([0.5, 2.0, 0.8]))
    return _residual(spot, lambda y, _: y * factor)


def _residual(spot: Spot, change: Any) -> Planting | None:
    """Change what is handed on to be added; what is around it then has lost, or doubled, the stream."""
    which = int(spot.rng.integers(2))
    added, stream = spot.inside(spot.tiny.arch.added[which]), spot.inside(spot.tiny.arch.stream[which])
    seen: list[Any] = []

    def plant() -> None:
        spot.module(stream).register_forward_pre_hook(_note(seen), with_kwargs=True)
        change_handed_on(spot.module(added), lambda y: change(y, seen[-1]))()

    site = spot.block if spot.tiny.arch.is_causal else added.rpartition(".")[0]
    return Planting(site, plant)


def _note(seen: list[Any]) -> Any:
    def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(args[0] if args else kwargs["hidden_states"])

    return hook


# --- experts -------------------------------------------------------------------------------------


def _router(spot: Spot) -> str | None:
    return spot.one_of(spot.tiny.within(spot.block, r":\w*TopKRouter$"))


def router_scale(spot: Spot) -> Planting | None:
    """The weights of the experts are scaled."""
    if (path := _router(spot)) is None:
        return None
    factor = float(spot.rng.choice([0.5, 2.0, 2.5]))
    return _with_routes(spot, path, lambda logits, weights, routes: (logits, weights * factor, routes))


def router_not_normed(spot: Spot) -> Planting | None:
    """The weights of the experts are left as the softmax has them."""
    if (path := _router(spot)) is None:
        return None

    def change(logits: Any, weights: Any, routes: Any) -> tuple[Any, Any, Any]:
        return logits, logits.float().softmax(-1).gather(-1, routes).to(weights.dtype), routes

    return _with_routes(spot, path, change)


def router_top_k(spot: Spot) -> Planting | None:
    """The third expert is taken for the second."""
    if (path := _router(spot)) is None:
        return None

    def change(logits: Any, weights: Any, _: Any) -> tuple[Any, Any, Any]:
        best = logits.float().softmax(-1).topk(3, -1)
        values, taken = best.values[..., [0, 2]], best.indices[..., [0, 2]]
        return logits, (values / values.sum(-1, keepdim=True)).to(weights.dtype), taken

    return _with_routes(spot, path, change)


def _with_routes(spot: Spot, path: str, change: Any) -> Planting:
    module = spot.module(path)
    return Planting(path, lambda: replace_forward(module, lambda forward: lambda x: change(*forward(x))))


def one_expert(spot: Spot) -> Planting | None:
    """One expert has another's weights."""
    if (path := spot.one_of(spot.tiny.within(spot.block, r":\w*Experts$"))) is None:
        return None
    weights = spot.module(path).down_proj
    one, other = (int(at) for at in spot.rng.choice(len(weights), 2, replace=False))
    return Planting(path, lambda: weights.data[one].copy_(weights.data[other]))


def expert_scale(spot: Spot) -> Planting | None:
    """What the experts give is scaled."""
    if (path := spot.one_of(spot.tiny.within(spot.block, r":\w*Experts$"))) is None:
        return None
    return Planting(path, change_output(spot.module(path), lambda y: y * 0.5))


def gate_after_up(spot: Spot) -> Planting | None:
    """The activation is put on up instead of gate, between the parts of an mlp."""
    path = spot.one_of(spot.tiny.within(spot.block, r"^mlp:\w*MLP$"))
    if path is None or not hasattr(spot.module(path), "up_proj"):
        return None
    module = spot.module(path)

    def forward(x: Any) -> Any:
        gate, up = module.gate_proj(x), module.up_proj(x)
        _ = module.act_fn(gate)
        return module.down_proj(gate * torch.nn.functional.silu(up))

    return Planting(path, lambda: replace_forward(module, lambda _: forward))
