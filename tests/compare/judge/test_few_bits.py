"""Rules for types of few bits: tables of positions, what follows a mixture of experts, what is sorted by expert."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tensordiff.compare.comparer import Comparer
from tensordiff.compare.row import Row
from tensordiff.dump.dtypes import Array
from tests.making import numbers, pairs

X = numbers(24, 64)
QUIET = 0.004


def rows(reference: dict[str, Array], candidate: dict[str, Array]) -> dict[str, Row]:
    return {row.pair.reference.name: row for row in Comparer().rows(pairs(reference, candidate))}


def off(x: Array, error: float, seed: int = 1) -> Array:
    return np.asarray(x * (1 + error * numbers(*x.shape, seed=seed)))


def short(tensors: dict[str, Array]) -> dict[str, Array]:
    return {n: v if v.dtype.kind in "iu" else v.astype(ml_dtypes.bfloat16) for n, v in tensors.items()}


@pytest.mark.parametrize(
    ("layer", "error", "verdict"),
    [("rotary_emb", 0.02, "diverges"), ("rotary_emb", 0.008, "agrees"), ("layers.0.mlp", 0.02, "agrees")],
)
def test_a_table_of_positions_is_off_by_a_few_roundings_at_most(layer: str, error: float, verdict: str) -> None:
    ids = np.arange(24)[None]
    reference, candidate = ({f"{layer}-input_position_ids": ids, f"{layer}-output": x} for x in (X, off(X, error)))
    assert rows(short(reference), short(candidate))[f"{layer}-output"].verdict.name == verdict
    if verdict == "diverges":
        candidate[f"{layer}-input_position_ids"] = ids + 1  # then what it is made of is wrong
        assert rows(short(reference), short(candidate))[f"{layer}-output"].verdict.name != "diverges"


def run(wrong: int, *, is_short: bool, has_router: bool = True, has_inputs: bool = False) -> str:
    """The verdict on a layer of which so many tokens are wrong, after a router whose logits agree."""
    error = QUIET if is_short else 1e-7
    late = off(X, error, 3)
    late[:wrong] += numbers(wrong, 64, seed=4)
    first = "layers.0.mlp.gate" if has_router else "layers.0.mlp.up_proj"
    reference = {
        f"{first}-input_0": X,
        f"{first}-output": X[:, :8],
        "layers.1.mlp-input_0": X,
        "layers.1.mlp-output": X,
    }
    candidate = reference | {
        f"{first}-input_0": off(X, error), f"{first}-output": off(X, error)[:, :8],
        "layers.1.mlp-input_0": off(X, error, 2), "layers.1.mlp-output": late,
    }  # fmt: skip
    if not has_inputs:
        reference.pop("layers.1.mlp-input_0")
    sides = (short(reference), short(candidate)) if is_short else (reference, candidate)
    return rows(*sides)["layers.1.mlp-output"].verdict.name


def test_after_a_mixture_in_few_bits_most_tokens_must_be_wrong() -> None:
    assert run(5, is_short=True) == "drifts"
    assert run(20, is_short=True) == "diverges"
    assert run(5, is_short=False) == "diverges"
    assert run(5, is_short=True, has_router=False) == "diverges"
    assert run(5, is_short=True, has_inputs=True) == "diverges"  # no token that it was given is one that flipped


def test_what_a_router_sorts_by_expert_is_judged_by_its_logits() -> None:
    logits = numbers(24, 4)
    other = logits.copy()
    best = np.argsort(-logits, 1)
    other[3, best[3, 1]], other[3, best[3, 2]] = logits[3, best[3, 2]], logits[3, best[3, 1]]

    def side(values: Array, close: Array) -> dict[str, Array]:
        routes = np.argsort(-values, 1)[:, :2]
        order = routes.reshape(-1).argsort(kind="stable")
        return {"moe.router.layer-output": close, "moe.router-output_0": order, "moe.router-output_1": order // 2}

    reference, candidate = side(logits, logits), side(other, logits * (1 + 1e-7))
    found = rows(reference, candidate)
    assert found["moe.router-output_0"].verdict.name == "diverges"  # its logits do not say that others were taken
    near = logits.copy()
    near[3, best[3, 1]] = near[3, best[3, 2]] + 1e-6
    swapped = near.copy()
    swapped[3, best[3, 1]] -= 2e-6
    found = rows(side(near, near), side(swapped, swapped))
    assert found["moe.router-output_0"].verdict.name == "drifts"
    assert "1 of 24 tokens took other experts" in found["moe.router-output_0"].verdict.why


def test_a_whole_block_may_multiply_more_than_a_layer() -> None:
    def verdict(error: float) -> str:
        names = [f"layers.{k}-output" for k in range(3)]
        reference = dict.fromkeys(names, X)
        candidate = {
            name: off(X, e, 11 + k) for k, (name, e) in enumerate(zip(names, (0.008, 0.008, error), strict=True))
        }
        return rows(short(reference), short(candidate))["layers.2-output"].verdict.name

    assert verdict(0.034) == "drifts"
    assert verdict(0.085) == "diverges"
