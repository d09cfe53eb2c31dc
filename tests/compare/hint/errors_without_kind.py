"""Errors that have no kind: noise of several distributions, another activation, other weights."""

from __future__ import annotations

import numpy as np

from tests.compare.hint.healthy_pairs import Ground, Planted


def gaussian(g: Ground) -> Planted:
    return g.pair(g.ref + _some(g) * g.noise())


def heavy_tailed(g: Ground) -> Planted:
    return g.pair(g.ref + _some(g) * g.noise() * g.rng.standard_cauchy(g.ref.shape).clip(-1e3, 1e3))


def multiplied(g: Ground) -> Planted:
    return g.pair(g.ref * (1 + _some(g) * g.rng.standard_normal(g.ref.shape)))


def even(g: Ground) -> Planted:
    return g.pair(g.ref * (1 + _some(g) * g.rng.uniform(-1, 1, g.ref.shape)))


def sparse(g: Ground) -> Planted:
    return g.pair(np.where(g.rng.random(g.ref.shape) < 0.02, g.noise() * 10, g.ref))


def other_numbers(g: Ground) -> Planted:
    return g.pair(g.ref[..., :1] * 0 + g.noise())


def other_weights(g: Ground) -> Planted:
    x = g.rng.standard_normal((*g.ref.shape[:-1], 96))
    right, wrong = (g.rng.standard_normal((96, g.ref.shape[-1])) for _ in range(2))
    return g.pair(x @ (right + _some(g) * wrong), x @ right)


def activation(g: Ground) -> Planted:
    x = g.ref / np.sqrt(np.square(g.ref).mean())
    silu, gelu, relu = x / (1 + np.exp(-x)), 0.5 * x * (1 + np.tanh(0.79788456 * (x + 0.044715 * x**3))), x.clip(0)
    ref, cand = ((silu, gelu), (gelu, relu), (silu, relu), (x, silu))[g.rng.integers(4)]
    return g.pair(cand, ref)


def massive(g: Ground) -> Planted:
    """Wrong weights in a stream with a few huge channels, elsewhere on the other side."""
    ref, cand = g.ref.copy(), g.noise()
    for side in (ref, cand):
        side[..., int(g.rng.integers(side.shape[-1]))] *= 50
    return g.pair(cand, ref)


def _some(g: Ground) -> float:
    """An error that diverges: from above the floor of the type to as large as the reference."""
    least = {"float64": -5, "float32": -3, "float16": -1.3, "bfloat16": -1}[g.dtype]
    return float(10.0 ** g.rng.uniform(least, 0))


NO_KIND = (
    gaussian, heavy_tailed, multiplied, even, sparse, other_numbers, other_weights, activation, massive,
)  # fmt: skip
