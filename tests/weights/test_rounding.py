"""What a quantized candidate makes of a reference's weights: taken where its quantization explains it, else left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tensordiff.capture.quantization import quantization_facts
from tensordiff.dump import Dump, open_dump
from tensordiff.dump.model import MemoryTensor, entry
from tensordiff.dump.names import parameter_name
from tensordiff.weights.parameters import parameters_of
from tensordiff.weights.quantization import GGML, Quantization
from tensordiff.weights.rounding import Rounding, quantizations, round_as, rounds_activations
from tests.making import write
from tests.weights.making import Weights, llama, mlx_quantized, write_gguf, write_sharded

GATE, UP = "model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight"
NORM = "model.layers.1.post_attention_layernorm.weight"


def held(weights: Weights, **facts: object) -> Dump:
    """Parameters in memory, as a model that is loaded has them."""
    entries = tuple(entry(parameter_name(name), MemoryTensor(array)) for name, array in weights.items())
    return Dump(Path("model"), "arrays", entries, ordered=True, facts=facts).with_parameters_apart()


def swapped(weights: Weights) -> Weights:
    return weights | {GATE: weights[UP], UP: weights[GATE]}


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_weights_of_blocks_are_taken_in_the_layout_of_the_reference(tmp_path: Path, kind: str) -> None:
    weights, rounding = llama(3), Rounding()
    candidate = open_dump(write_gguf(weights, tmp_path / "m.gguf", kind))
    made = dict(round_as(held(weights), candidate, rounding))
    assert rounding.left == [] and set(made) == set(weights)
    assert set(rounding.taken) == {name for name, array in weights.items() if array.ndim == 2}
    for name, values in made.items():
        assert values.shape == weights[name].shape
        error = np.linalg.norm(values - weights[name]) / np.linalg.norm(weights[name])
        assert error == 0 if values.ndim == 1 else 0 < error < 0.2, name
    assert rounding.sentence == f"{4 if kind == 'Q4_0' else 8}-bit weights ({kind})"
    assert rounds_activations(rounding.kinds)


def test_a_weight_that_quantization_does_not_explain_is_left(tmp_path: Path) -> None:
    weights = llama(4)
    wrong = swapped(weights) | {NORM: weights[NORM] * np.float32(1.25)}
    candidate = open_dump(write_gguf(wrong, tmp_path / "m.gguf", "Q4_0"))
    rounding = Rounding()
    made = {name for name, _ in round_as(held(weights), candidate, rounding)}
    assert set(rounding.left) == {GATE, UP, NORM} == set(weights) - made


def test_parts_that_the_reference_has_apart_are_taken_from_a_fused_weight(tmp_path: Path) -> None:
    weights, rounding = llama(5), Rounding()
    fused = {name: array for name, array in weights.items() if "gate_proj" not in name and "up_proj" not in name}
    for k in range(3):
        parts = [weights[f"model.layers.{k}.mlp.{part}_proj.weight"] for part in ("gate", "up")]
        fused[f"model.layers.{k}.mlp.gate_up_proj.weight"] = np.concatenate(parts)
    candidate = open_dump(write_sharded(mlx_quantized(fused), tmp_path / "m"))
    made = dict(round_as(held(weights), candidate, rounding))
    assert rounding.left == []
    assert made[UP].shape == weights[UP].shape
    assert np.linalg.norm(made[UP] - weights[UP]) < 0.2 * np.linalg.norm(weights[UP])
    assert not rounds_activations(rounding.kinds)


def test_a_plain_checkpoint_has_nothing_quantized(tmp_path: Path) -> None:
    weights, rounding = llama(6), Rounding()
    candidate = open_dump(write_sharded(weights, tmp_path / "m"))
    assert quantizations(candidate) == {}
    assert list(round_as(held(weights), candidate, rounding)) and rounding.taken == []


# --- captures that say so themselves ----------------------------------------------------------------


def rounded(array: NDArray[Any], bits: int, group: int) -> NDArray[np.float32]:
    """In steps of a group's own size."""
    x = array.reshape(-1, group)
    step = np.abs(x).max(-1, keepdims=True) / (2 ** (bits - 1) - 1)
    return np.asarray(np.round(x / step) * step, np.float32).reshape(array.shape)


@pytest.mark.parametrize(("bits", "is_believed"), [(4, True), (3, False)])
def test_what_a_capture_says_is_believed_where_its_values_bear_it_out(
    tmp_path: Path, bits: int, is_believed: bool
) -> None:
    weights = {"model.layers.0.up.weight": llama(7)[UP]}
    kind = Quantization("some int", bits, 32)
    facts = quantization_facts(dict.fromkeys(weights, kind), rounds_activations=False)
    there = {parameter_name(name): rounded(array, 4, 32) for name, array in weights.items()}
    dump = open_dump(write(tmp_path / "d", there | {"model-output": np.ones(3, np.float32)}, **facts))
    (item,) = parameters_of(dump)
    assert (item.quantization == kind) is is_believed
    rounding = Rounding()
    list(round_as(held(weights), dump, rounding))
    assert (rounding.taken == list(weights)) is is_believed


@pytest.mark.parametrize(
    "said",
    [
        {"kinds": [], "parameters": {"w.weight": 0}}, {"kinds": [{}], "parameters": {"w.weight": 0}}, [], "Q4", {},
        {"kinds": [{"name": "x", "bits": 64, "block": 1, "is_exact_scale": True}], "parameters": {"w.weight": 0}},
        {"kinds": [{"name": "x", "bits": 4, "block": 0, "is_exact_scale": True}], "parameters": {"w.weight": 0}},
        {"kinds": [{"name": "x", "bits": 4, "block": 8, "is_exact_scale": True}], "parameters": {"w.weight": -1}},
    ],
)  # fmt: skip
def test_nonsense_about_quantization_is_not_believed(said: object) -> None:
    dump = held({"w.weight": np.ones((4, 8), np.float32)}, quantization=said)
    assert [item.quantization for item in parameters_of(dump)] == [None]


def test_ggmls_types_round_activations_and_others_need_not() -> None:
    assert rounds_activations({"Q4_K": GGML[12]})
    assert not rounds_activations({"MLX": Quantization("MLX 4 bits in groups of 32", 4, 32)})
