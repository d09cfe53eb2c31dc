"""Weight bugs to plant, each a function from a clean checkpoint to a buggy one, and what must be said of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np

from tensordiff.weights.comparison import ParameterRow
from tests.weights.making import HEAD, HIDDEN, Weights

L1 = "model.layers.1."


class Plant(NamedTuple):
    """A bug, the parameter it is planted in, and the kind that must be named."""

    name: str
    apply: Callable[[Weights], None]
    where: str
    """The parameter, by its canonical name; the first, where there are several."""
    kind: str
    words: str
    """Part of the sentence."""


def planted_row(plant: Plant, row: ParameterRow) -> str:
    """The row of docs/weights.md."""
    kind = row.hint.kind if row.hint is not None else ""
    return f"| {plant.name} | `{row.name}` | {kind} | {row.sentence} |"


def _set(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Weights], None]:
    def apply(weights: Weights) -> None:
        weights[name] = np.ascontiguousarray(change(weights[name])).astype(weights[name].dtype)

    return apply


def _swap(one: str, other: str) -> Callable[[Weights], None]:
    def apply(weights: Weights) -> None:
        weights[one], weights[other] = weights[other], weights[one]

    return apply


def _zero_rows(values: np.ndarray, start: int, stop: int) -> np.ndarray:
    changed = values.copy()
    changed[start:stop] = 0
    return changed


def _interleave(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1, 2, HEAD // 2, HIDDEN).swapaxes(1, 2).reshape(values.shape)


def _off_by_one(weights: Weights) -> None:
    names = [name for name in weights if name.startswith(L1)]
    for name in names:
        weights[name] = weights[name.replace("layers.1.", "layers.2.")].copy()


PLANTS = (
    Plant("random initialization", _set(f"{L1}mlp.up_proj.weight",
          lambda v: np.random.default_rng(99).normal(0, 0.02, v.shape)),
          "layers.1.mlp.up_proj.weight", "not loaded", "normal with a deviation of 0.02"),
    Plant("zeros", _set(f"{L1}mlp.up_proj.weight", np.zeros_like),
          "layers.1.mlp.up_proj.weight", "not loaded", "all zero"),
    Plant("ones", _set(f"{L1}input_layernorm.weight", np.ones_like),
          "layers.1.input_layernorm.weight", "not loaded", "all one"),
    Plant("transposed", _set(f"{L1}self_attn.o_proj.weight", lambda v: v.T),
          "layers.1.self_attn.o_proj.weight", "transposed", "exchanged"),
    Plant("rope rows", _set(f"{L1}self_attn.q_proj.weight", _interleave),
          "layers.1.self_attn.q_proj.weight", "rope rows", f"in blocks of {HEAD}"),
    Plant("heads swapped", _set(f"{L1}self_attn.q_proj.weight",
          lambda v: v.reshape(4, HEAD, HIDDEN)[[0, 2, 1, 3]].reshape(v.shape)),
          "layers.1.self_attn.q_proj.weight", "heads permuted", "number 1 and number 2 of 4"),
    Plant("gate and up swapped", _swap(f"{L1}mlp.gate_proj.weight", f"{L1}mlp.up_proj.weight"),
          "layers.1.mlp.gate_proj.weight", "swapped", "layers.1.mlp.up_proj.weight"),
    Plant("k and v swapped", _swap(f"{L1}self_attn.v_proj.weight", f"{L1}self_attn.k_proj.weight"),
          "layers.1.self_attn.v_proj.weight", "swapped", "layers.1.self_attn.k_proj.weight"),
    Plant("the next layer's", _off_by_one, "layers.1.mlp.up_proj.weight", "wrong slot", "1 layer further"),
    Plant("tied", lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"].copy()}),
          "lm_head.weight", "tied", "the embedding"),
    Plant("cast to bfloat16", _set(f"{L1}mlp.down_proj.weight",
          lambda v: v.astype(ml_dtypes.bfloat16).astype(np.float32)),
          "layers.1.mlp.down_proj.weight", "cast", "rounded to bfloat16"),
    Plant("cast to fp8", _set(f"{L1}mlp.down_proj.weight",
          lambda v: v.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)),
          "layers.1.mlp.down_proj.weight", "cast", "rounded to float8_e4m3fn"),
    Plant("scaled", _set(f"{L1}self_attn.q_proj.weight", lambda v: v / 4),
          "layers.1.self_attn.q_proj.weight", "scale", "1/4 times"),
    Plant("norm plus one", _set(f"{L1}input_layernorm.weight", lambda v: v - 1),
          "layers.1.input_layernorm.weight", "offset", "- 1 everywhere"),
    Plant("sign", _set(f"{L1}self_attn.v_proj.weight", lambda v: -v),
          "layers.1.self_attn.v_proj.weight", "sign", "-1 times"),
    Plant("vocabulary cut", _set("model.embed_tokens.weight", lambda v: v[:80]),
          "embed_tokens.weight", "truncated", "rows 80 to 95"),
    Plant("slice left out", _set(f"{L1}mlp.gate_proj.weight", lambda v: _zero_rows(v, 32, 64)),
          "layers.1.mlp.gate_proj.weight", "slice", "rows 32 to 63 of 160 are zero"),
    Plant("columns of heads swapped", _set(f"{L1}self_attn.o_proj.weight",
          lambda v: v.reshape(HIDDEN, 4, HEAD)[:, [1, 0, 2, 3]].reshape(v.shape)),
          "layers.1.self_attn.o_proj.weight", "heads permuted", f"blocks of {HEAD} columns"),
    Plant("rows shifted", _set(f"{L1}mlp.down_proj.weight", lambda v: np.roll(v, 1, axis=0)),
          "layers.1.mlp.down_proj.weight", "shifted", "rows shifted by -1"),
    Plant("read with another shape", _set(f"{L1}mlp.gate_proj.weight", lambda v: v.T.reshape(v.shape)),
          "layers.1.mlp.gate_proj.weight", "misread", "transposed numbers"),
)  # fmt: skip
