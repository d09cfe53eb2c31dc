"""Two runs of one small made-up model, which differ in names, layout and, if asked for, from some layer on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Dump, Entry, MemoryTensor, entry

TOKENS, HIDDEN, LAYERS = 7, 16, 4


@dataclass
class Run:
    """Writes entries as a model runs; ``spell`` names a layer, ``lay_out`` shapes a tensor."""

    spell: Callable[[str], str] = str
    lay_out: Callable[[Array], Array] = lambda array: array
    entries: list[Entry] = field(default_factory=list)

    def see(self, layer: str, port: str, value: Array) -> None:
        self.entries.append(entry(f"{self.spell(layer)}-{port}", MemoryTensor(self.lay_out(value))))

    def layer(self, name: str, given: Array, value: Array) -> Array:
        self.see(name, "input_0", given)
        self.see(name, "output", value)
        return value

    def dump(self) -> Dump:
        return Dump(Path("run"), "arrays", tuple(self.entries), ordered=True)


def run(
    run: Run,
    *,
    wrong_from: tuple[int, str] | None = None,
    fused: bool = False,
    residual_apart: bool = False,
    layers: int = LAYERS,
) -> Dump:
    """Run the model; from ``wrong_from`` on, a layer's result is wrong, and so is all that follows.

    With ``residual_apart`` a block gives its residual beside its result, and the next one's norm adds them.
    """
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> Array:
        return np.asarray(rng.standard_normal(shape) / np.sqrt(shape[0]), np.float32)

    def result(i: int, part: str, value: Array) -> Array:
        return np.asarray(value + (np.sin(7 * value) if (i, part) == wrong_from else 0), np.float32)

    x = np.asarray(rng.standard_normal((1, TOKENS, HIDDEN)), np.float32)
    x = run.layer("embed", x * 2, x)
    down, residual = x, x
    for i in range(layers):
        at = f"layers.{i}"
        carried = [down, residual] if residual_apart and i else [x]
        for name in (at, f"{at}.norm"):
            for place, value in enumerate(carried):
                run.see(name, f"input_{place}", value)
        x = result(i, "sum", x)
        normed = result(i, "norm", x / np.sqrt((x**2).mean(-1, keepdims=True)))
        run.see(f"{at}.norm", "output_0" if len(carried) > 1 else "output", normed)
        if len(carried) > 1:
            run.see(f"{at}.norm", "output_1", x)
        q, k, v = (normed @ weight(HIDDEN, width) for width in (HIDDEN, 8, 8))
        q = result(i, "q", q)
        if fused:
            run.layer(f"{at}.attn.qkv", normed, np.concatenate([q, k, v], -1))
        else:
            for name, value in (("q", q), ("k", k), ("v", v)):
                run.layer(f"{at}.attn.{name}", normed, value)
        mixed = np.tanh(q) * np.concatenate([k, v], -1)
        out = run.layer(f"{at}.attn.o", mixed, result(i, "o", mixed @ weight(HIDDEN, HIDDEN)))
        x = x + out
        up = run.layer(f"{at}.mlp.up", x, x @ weight(HIDDEN, 32))
        act = run.layer(f"{at}.mlp.act", up, result(i, "act", np.maximum(up, 0) + 0.1 * up))
        down = run.layer(f"{at}.mlp.down", act, act @ weight(32, HIDDEN))
        residual, x = x, x + down
        if residual_apart:
            run.see(at, "output_0", down)
            run.see(at, "output_1", residual)
        else:
            run.see(at, "output", x)
    run.layer("head", x, x @ weight(HIDDEN, 40))
    return run.dump()
