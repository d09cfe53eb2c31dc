"""Errors of every kind, planted into random tensors of random shape, type and scale."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tensordiff.compare.hint.context import HintContext
from tensordiff.dump.dtypes import DTYPES
from tests.compare.hint.healthy_pairs import Floats, Ground, Planted


def scale(g: Ground) -> Planted:
    return g.pair(g.ref * g.rng.choice([0.125, 0.5, 2.0, 8.0, np.sqrt(g.ref.shape[-1]), 1.7, 1 / np.sqrt(g.head_size)]))


def sign(g: Ground) -> Planted:
    return g.pair(-g.ref)


def bias(g: Ground) -> Planted:
    return g.pair(g.ref + g.rng.uniform(0.5, 2) * g.rng.choice([-1, 1]) * np.abs(g.ref).mean())


def bias_per_channel(g: Ground) -> Planted:
    return g.pair(g.ref + g.noise((g.ref.shape[-1],)))


def transposed(g: Ground) -> Planted:
    side = int(g.rng.integers(8, 64))
    ref = g.noise((*g.ref.shape[:-2], side, side))
    return g.pair(ref.swapaxes(-1, -2), ref)


def _heads(g: Ground) -> Floats:
    return g.ref.reshape(*g.ref.shape[:-1], g.heads, g.head_size)


def heads_permuted(g: Ground) -> Planted:
    order = np.arange(g.heads)
    while (order[: g.heads // 2] // (g.heads // 2) == order[0] // (g.heads // 2)).all():
        order = g.rng.permutation(g.heads)
    return g.pair(_heads(g)[..., order, :].reshape(g.ref.shape))


def two_heads_swapped(g: Ground) -> Planted:
    order = np.arange(g.heads)
    one, other = g.rng.choice(g.heads, 2, replace=False)
    order[one], order[other] = order[other], order[one]
    return g.pair(_heads(g)[..., order, :].reshape(g.ref.shape))


def kv_repeat(g: Ground) -> Planted:
    times = int(g.rng.choice([2, 4]))
    kv = _heads(g)
    sides = (np.repeat(kv, times, axis=-2), np.concatenate([kv] * times, axis=-2))
    ref, cand = (side.reshape(*g.ref.shape[:-1], -1) for side in sides[:: g.rng.choice([-1, 1])])
    return Planted(ref.astype(DTYPES[g.dtype]), cand.astype(DTYPES[g.dtype]))


def rope_order(g: Ground) -> Planted:
    halves = _heads(g).reshape(*g.ref.shape[:-1], g.heads, 2, g.head_size // 2)
    sides = g.ref, halves.swapaxes(-1, -2).reshape(g.ref.shape)
    ref, cand = sides[:: g.rng.choice([-1, 1])]
    return g.pair(cand, ref)


def blocks_swapped(g: Ground) -> Planted:
    parts = np.split(g.ref, 2, axis=-1)
    return g.pair(np.concatenate(parts[::-1], axis=-1))


def lost_transpose(g: Ground) -> Planted:
    return g.pair(_heads(g).swapaxes(-2, -3).reshape(g.ref.shape))


def shifted(g: Ground) -> Planted:
    return g.pair(np.roll(g.ref, g.rng.choice([-1, 1]), axis=-2))


def rows_shuffled(g: Ground) -> Planted:
    return g.pair(g.ref[..., g.rng.permutation(g.tokens), :])


def one_row_repeated(g: Ground) -> Planted:
    at = g.rng.integers(g.tokens)
    return g.pair(np.broadcast_to(g.ref[..., at : at + 1, :], g.ref.shape).copy())


def _only_tokens(g: Ground, tokens: slice | int) -> Planted:
    cand = g.ref.copy()
    cand[..., tokens, :] += g.rng.uniform(0.5, 2) * g.noise()[..., tokens, :]
    return g.pair(cand)


def one_token(g: Ground) -> Planted:
    return _only_tokens(g, int(g.rng.integers(1, g.tokens - 1)))


def first_token(g: Ground) -> Planted:
    return _only_tokens(g, 0)


def last_token(g: Ground) -> Planted:
    return _only_tokens(g, -1)


def all_but_first(g: Ground) -> Planted:
    return _only_tokens(g, slice(1, None))


def from_token(g: Ground) -> Planted:
    return _only_tokens(g, slice(int(g.rng.integers(2, g.tokens - 1)), None))


def up_to_token(g: Ground) -> Planted:
    return _only_tokens(g, slice(0, int(g.rng.integers(2, g.tokens - 1))))


def one_head(g: Ground) -> Planted:
    cand, head = g.ref.copy(), int(g.rng.integers(g.heads))
    at = slice(head * g.head_size, (head + 1) * g.head_size)
    cand[..., at] += np.sqrt(np.square(g.ref).mean((*range(g.ref.ndim - 1),)))[at] * g.rng.standard_normal(
        cand[..., at].shape
    )
    return g.pair(cand)


def channel_block(g: Ground) -> Planted:
    cand = g.ref.copy()
    width = int(g.rng.choice([3, 5, 7, 11]))
    begin = int(g.rng.integers(0, g.ref.shape[-1] - width))
    cand[..., begin : begin + width] *= g.rng.standard_normal(cand[..., begin : begin + width].shape)
    return g.pair(cand)


def grows_with_position(g: Ground) -> Planted:
    """Rope with another base: every pair of channels turned too far, the more the later the token."""
    return g.pair(_turned(g, 1e4), _turned(g, g.rng.choice([5e5, 1e6, 1e3])))


def _turned(g: Ground, base: float) -> Floats:
    half = g.head_size // 2
    angles = np.arange(g.tokens)[:, None, None] * base ** (-np.arange(half) / half)
    one, other = _heads(g)[..., :half], _heads(g)[..., half:]
    turned = one * np.cos(angles) - other * np.sin(angles), other * np.cos(angles) + one * np.sin(angles)
    return np.concatenate(turned, axis=-1).reshape(g.ref.shape)


def falls_with_position(g: Ground) -> Planted:
    """A causal mask that one side lacks."""
    scores = np.exp(0.5 * g.rng.standard_normal((g.tokens, g.tokens)))
    weights = np.tril(scores), scores
    sides = [side / side.sum(-1, keepdims=True) @ g.ref for side in weights]
    ref, cand = sides[:: g.rng.choice([-1, 1])]
    return g.pair(cand, ref)


def _finer(g: Ground) -> Floats:
    """The reference, off the grid of any small type."""
    return g.ref * (1 + 0.1 * g.rng.standard_normal(g.ref.shape))


def rounded(g: Ground) -> Planted:
    name = str(g.rng.choice(["bfloat16", "float16", "float8_e4m3fn"]))
    ref = (_finer(g) / np.abs(g.ref).max() * 100).astype(np.float32)
    return Planted(ref, ref.astype(DTYPES[name]).astype(np.float32))


def computed_in_bfloat16(g: Ground) -> Planted:
    """A matmul whose inputs and output are bfloat16, in a float32 model."""
    low, x = DTYPES["bfloat16"], _finer(g).astype(np.float32)
    weight = g.rng.standard_normal((g.ref.shape[-1], 64)).astype(np.float32)
    out = x.astype(low).astype(np.float32) @ weight.astype(low).astype(np.float32)
    return Planted(x @ weight, out.astype(low).astype(np.float32))


def rounded_before_a_weight(g: Ground) -> Planted:
    """A norm that casts to bfloat16 before its weight is applied."""
    ref, weight = _finer(g).astype(np.float32), np.exp(g.rng.standard_normal(g.ref.shape[-1])).astype(np.float32)
    return Planted(ref * weight, ref.astype(DTYPES["bfloat16"]).astype(np.float32) * weight)


def last_bits(g: Ground) -> Planted:
    ref = _finer(g).astype(np.float32)
    return Planted(ref, ref + np.spacing(ref) * g.rng.integers(-1, 2, ref.shape).astype(np.float32))


def nan(g: Ground) -> Planted:
    cand = g.ref.copy()
    cand[g.rng.random(cand.shape) < 0.05] = np.nan
    return g.pair(cand)


def inf(g: Ground) -> Planted:
    cand = g.ref.copy()
    cand[..., g.rng.integers(g.tokens), :] = np.inf
    return g.pair(cand)


def zero(g: Ground) -> Planted:
    return g.pair(np.zeros_like(g.ref))


def constant(g: Ground) -> Planted:
    return Planted(g.ref.astype(DTYPES[g.dtype]), np.full_like(g.ref, g.ref.max()).astype(DTYPES[g.dtype]))


def residual_lost(g: Ground) -> Planted:
    other = g.noise().astype(DTYPES[g.dtype])
    return g.pair(g.ref, g.ref + other.astype(np.float64))._replace(
        context=HintContext({"unlike": g.noise(), "input_0": other})
    )


def residual_twice(g: Ground) -> Planted:
    other = g.noise().astype(DTYPES[g.dtype])
    ref = g.ref + other.astype(np.float64)
    return g.pair(ref + other.astype(np.float64), ref)._replace(context=HintContext({"input_0": other}))


def passed_through(g: Ground) -> Planted:
    other = g.noise().astype(DTYPES[g.dtype])
    return g.pair(other.astype(np.float64))._replace(context=HintContext({"input_0": other}))


def _normed(g: Ground, epsilon: float) -> Floats:
    """Tokens of many sizes, as they enter a norm."""
    sizes = np.exp(np.random.default_rng(7).standard_normal((g.tokens, 1)))
    x = g.ref / np.sqrt(np.square(g.ref).mean()) * sizes
    return np.asarray(x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon))


def scale_per_token(g: Ground) -> Planted:
    """A norm with another epsilon."""
    return g.pair(_normed(g, 0.5), _normed(g, 1e-6))


def scale_per_channel(g: Ground) -> Planted:
    """A norm without its weight."""
    return g.pair(g.ref * np.exp(g.rng.standard_normal(g.ref.shape[-1])))


KINDS: dict[str, tuple[Callable[[Ground], Planted], frozenset[str]]] = {
    make.__name__: (make, frozenset((make.__name__, *also)))
    for make, also in [
        (scale, ()), (sign, ()), (bias, ()), (bias_per_channel, ()), (transposed, ()),
        (heads_permuted, ()), (two_heads_swapped, ("heads_permuted", "blocks_swapped")), (kv_repeat, ()),
        (rope_order, ()), (blocks_swapped, ()), (lost_transpose, ()), (shifted, ()), (rows_shuffled, ()),
        (one_row_repeated, ()), (one_token, ()), (first_token, ()), (last_token, ()), (all_but_first, ()),
        (from_token, ()), (up_to_token, ()), (one_head, ()), (channel_block, ()),
        (grows_with_position, ()), (falls_with_position, ("all_but_last",)),
        (rounded, ()), (computed_in_bfloat16, ("rounded",)), (rounded_before_a_weight, ("rounded",)), (last_bits, ()),
        (nan, ()), (inf, ()), (zero, ()), (constant, ()),
        (residual_lost, ()), (residual_twice, ()), (passed_through, ()),
        (scale_per_token, ()), (scale_per_channel, ()),
    ]
}  # fmt: skip
"""Each kind, how it is planted, and the hints that are right for it."""
