"""Random small models as two engines would write them: the same weights and tokens, each engine in its own way.

Width, depth, kind of norm and of MLP are random. So is what the candidate does otherwise: projections fused, no batch,
no inputs recorded, norms written before their weight as well, the last token's logits alone, a mean of all tokens.
Both engines use the same words, which ``scrambled`` renames, or leaves as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tensordiff.dump import Dump, Entry
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import MemoryTensor, entry


@dataclass(frozen=True)
class Shape:
    """What both engines compute."""

    hidden: int
    wide: int
    tokens: int
    blocks: int
    is_gated: bool
    is_rms: bool
    adds_late: bool
    """Whether a norm comes after the residual is added, as in BERT."""
    seed: int


@dataclass(frozen=True)
class Dialect:
    """How an engine writes what it computes."""

    fuses: bool = False
    has_batch: bool = True
    has_inputs: bool = True
    has_bare_norms: bool = False
    last_token: bool = False
    pools: bool = False


@dataclass
class _Trace:
    dialect: Dialect
    jitter: np.random.Generator | None
    entries: list[Entry] = field(default_factory=list)

    def put(self, name: str, value: Array) -> None:
        shown = value if self.dialect.has_batch else value[0]
        if self.jitter is not None:
            shown = shown * (1 + 1e-7 * self.jitter.standard_normal(shown.shape))
        self.entries.append(entry(name, MemoryTensor(np.ascontiguousarray(shown, np.float32))))

    def layer(self, name: str, given: Array, made: Array) -> Array:
        if self.dialect.has_inputs:
            self.put(f"{name}-input_0", given)
        self.put(f"{name}-output", made)
        return made


def random_pair(seed: int) -> tuple[Dump, Dump]:
    """A reference and a candidate without a bug."""
    rng = np.random.default_rng(seed)
    hidden = int(rng.choice([32, 48, 64]))
    flags = [bool(flag) for flag in rng.integers(0, 2, 3)]
    sizes = hidden, int(rng.choice([hidden * 2, hidden * 3])), int(rng.integers(5, 12)), int(rng.integers(2, 6))
    shape = Shape(*sizes, flags[0], flags[1], flags[2], seed)
    odd = [bool(flag) for flag in rng.random(6) < 0.35]
    other = Dialect(odd[0], not odd[1], not odd[2], odd[3], odd[4], odd[5])
    return _run(shape, _Trace(Dialect(), None)), _run(shape, _Trace(other, np.random.default_rng(seed + 1)))


def _run(shape: Shape, trace: _Trace) -> Dump:
    rng = np.random.default_rng(shape.seed)

    def weight(*sizes: int) -> Array:
        return np.asarray(rng.standard_normal(sizes) / np.sqrt(sizes[0]))

    def norm(name: str, x: Array) -> Array:
        centred = x if shape.is_rms else x - x.mean(-1, keepdims=True)
        bare = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
        scale = 1 + 0.3 * rng.standard_normal(shape.hidden)
        if trace.dialect.has_bare_norms:
            trace.put(f"{name}_bare-output", bare)
        return trace.layer(name, x, bare * scale)

    x = rng.standard_normal((1, shape.tokens, shape.hidden))
    trace.put("model.embed-output", x)
    for k in range(shape.blocks):
        x = _block(f"model.layers.{k}", x, shape, trace, weight, norm)
    x = x if shape.adds_late else norm("model.norm", x)
    head = weight(shape.hidden, 96)
    seen = x[:, -1:] if trace.dialect.last_token else x
    trace.layer("model.lm_head", seen, seen @ head)
    if trace.dialect.pools:
        trace.put("model.pooled-output", x.mean(1, keepdims=True))
    return Dump(Path("random"), "arrays", tuple(trace.entries), ordered=True)


def _block(
    at: str, x: Array, shape: Shape, trace: _Trace, weight: Callable[..., Array], norm: Callable[[str, Array], Array]
) -> Array:
    given = x
    if trace.dialect.has_inputs:
        trace.put(f"{at}-input_0", given)
    a = x if shape.adds_late else norm(f"{at}.attn_norm", x)
    q, k, v = (a @ weight(shape.hidden, size) for size in (shape.hidden, shape.hidden // 2, shape.hidden // 2))
    if trace.dialect.fuses:
        trace.layer(f"{at}.attn.qkv", a, np.concatenate([q, k, v], -1))
    else:
        for name, made in (("q", q), ("k", k), ("v", v)):
            trace.layer(f"{at}.attn.{name}", a, made)
    scores = q @ np.concatenate([k, k], -1).swapaxes(1, 2) / np.sqrt(shape.hidden)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = shares / shares.sum(-1, keepdims=True) @ np.concatenate([v, v], -1)
    x = x + trace.layer(f"{at}.attn.o", mixed, mixed @ weight(shape.hidden, shape.hidden))
    x = norm(f"{at}.attn_norm", x) if shape.adds_late else x
    m = x if shape.adds_late else norm(f"{at}.mlp_norm", x)
    gate, up = (m @ weight(shape.hidden, shape.wide) for _ in range(2))
    act = trace.layer(f"{at}.mlp.gate", m, gate) if shape.is_gated else gate
    act = trace.layer(f"{at}.mlp.act", act, act / (1 + np.exp(-act)))
    if shape.is_gated:
        act = act * trace.layer(f"{at}.mlp.up", m, up)
    x = x + trace.layer(f"{at}.mlp.down", act, act @ weight(shape.wide, shape.hidden))
    x = norm(f"{at}.mlp_norm", x) if shape.adds_late else x
    trace.put(f"{at}-output", x)
    return x
