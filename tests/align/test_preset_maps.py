"""Maps of presets, on values: what they pair is the same tensor, whichever side fuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tensordiff.align.expression.activations import silu
from tensordiff.align.match import AlignmentPlan, align
from tensordiff.align.rules.tables import MapRule
from tensordiff.dump.dtypes import Array
from tests.making import aligned, held, numbers

Tensors = dict[str, Array | None]
NAMES = ("x", "q", "k", "v", "gate", "up", "attention", "down", "residual")
PARTS = {name: numbers(1, 5, 8, seed=k) for k, name in enumerate(NAMES)}
LAYERS = range(2)


def part(name: str, layer: int) -> Array:
    values: Array = PARTS[name] * (layer + 1)
    return values


def apart(layer: int) -> Tensors:
    """A block of transformers' Llama."""
    attn, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
    gate, up = part("gate", layer), part("up", layer)
    outputs: Tensors = {
        f"{attn}.q_proj-input_0": part("x", layer),
        **{f"{attn}.{name}_proj-output": part(name, layer) for name in "qkv"},
        f"{mlp}.gate_proj-input_0": part("attention", layer),
        f"{mlp}.gate_proj-output": gate,
        f"{mlp}.act_fn-output": silu(gate),
        f"{mlp}.up_proj-output": up,
        f"{mlp}.down_proj-input_0": silu(gate) * up,
        f"{mlp}.down_proj-output": part("down", layer),
    }
    return outputs


def together(layer: int) -> Tensors:
    """The same block where it is fused."""
    attn, mlp = f"model.layers.layers.{layer}.self_attn", f"model.layers.layers.{layer}.mlp"
    gate, up = part("gate", layer)[0], part("up", layer)[0]
    return {
        f"{attn}.qkv_proj-input_0": part("x", layer)[0],
        f"{attn}.qkv_proj-output": np.concatenate([part(name, layer)[0] for name in "qkv"], axis=-1),
        f"{mlp}.gate_up_proj-input_0": part("attention", layer)[0],
        f"{mlp}.gate_up_proj-output": np.concatenate([gate, up], axis=-1),
        f"{mlp}.down_proj-input_0": silu(gate) * up,
        f"{mlp}.down_proj-output": part("down", layer)[0],
    }


def without(tensors: Tensors, *endings: str) -> Tensors:
    return {name: array for name, array in tensors.items() if not name.endswith(endings)}


def pairs(reference: Tensors, candidate: Tensors) -> dict[str, str]:
    """What was paired by layer 1's names, all of it checked to be equal."""
    found = aligned(reference, candidate).pairs
    for pair in found:
        np.testing.assert_allclose(pair.reference.read().ravel(), pair.candidate.read().ravel(), rtol=1e-5)
    return {pair.reference.name: pair.candidate.name for pair in found if "0." not in pair.name}


@pytest.fixture
def split() -> Tensors:
    return {name: array for layer in LAYERS for name, array in apart(layer).items()}


@pytest.fixture
def fused() -> Tensors:
    return {name: array for layer in LAYERS for name, array in together(layer).items()}


def test_what_the_candidate_fuses(split: Tensors, fused: Tensors) -> None:
    found = pairs(split, fused)
    assert {*found.values()} == {name for name in fused if ".1." in name}
    assert found["model.layers.1.self_attn.q_proj-input_0"] == "model.layers.layers.1.self_attn.qkv_proj-input_0"
    assert found["model.layers.1.mlp.down_proj-input_0"] == "model.layers.layers.1.mlp.down_proj-input_0"


def test_what_the_reference_fuses(split: Tensors, fused: Tensors) -> None:
    assert {*pairs(fused, split)} == {name for name in fused if ".1." in name}


@pytest.mark.parametrize("unrecorded", [(), ("act_fn-output",)])
def test_the_product_before_down_proj(split: Tensors, fused: Tensors, unrecorded: tuple[str, ...]) -> None:
    reference = without(split, "down_proj-input_0", *unrecorded)
    candidate = without(fused, "gate_up_proj-output")
    product = "model.layers.layers.1.mlp.down_proj-input_0"
    assert product in pairs(reference, candidate).values()
    assert product in pairs(candidate, reference)


def test_a_product_that_was_dumped_is_compared_and_not_computed(split: Tensors) -> None:
    """The layer is renamed, so that only what was learned pairs what it was given."""
    theirs = {name.replace("down_proj", "wdown"): array for name, array in split.items()}
    mlp = "model.layers.{i}.mlp"
    learned = tuple(MapRule(f"{mlp}.down_proj{port}", f"{mlp}.wdown{port}") for port in ("", "-input_0"))
    sides = held(split), held(theirs)
    made = align(*sides, replace(AlignmentPlan.for_dumps(*sides), learned_maps=learned))
    names = {pair.reference.name: pair.candidate.name for pair in made.pairs}
    assert names["model.layers.1.mlp.down_proj-input_0"] == "model.layers.1.mlp.wdown-input_0"
    assert not made.candidate_orphans


def test_an_mlp_without_a_gate_multiplies_nothing() -> None:
    """GPT-2's ``c_fc`` is ``up_proj`` to us, and goes into the activation."""
    recorded: Tensors = {}
    for layer in LAYERS:
        mlp, up = f"transformer.h.{layer}.mlp", part("up", layer)
        recorded |= {f"transformer.h.{layer}.attn.c_attn-output": part("q", layer)}
        recorded |= {f"{mlp}.c_fc-output": up, f"{mlp}.act-output": silu(up)}
        recorded |= {f"{mlp}.c_proj-input_0": silu(up), f"{mlp}.c_proj-output": part("down", layer)}
    outputs = without(recorded, "input_0")
    for found in (pairs(recorded, outputs), pairs(outputs, recorded)):
        assert not any("mul(" in name for name in (*found, *found.values()))


def test_a_product_of_what_is_fused(split: Tensors, fused: Tensors) -> None:
    reference = without(split, "gate_proj-output", "up_proj-output", "act_fn-output")
    assert "model.layers.1.mlp.down_proj-input_0" in pairs(reference, without(fused, "down_proj-input_0"))


def test_vllm_s_residuals() -> None:
    """Its block gives output and residual apart, and its norms add them first."""
    x, residual = PARTS["x"], PARTS["residual"]
    ours: Tensors = {
        "model.layers.1.post_attention_layernorm-input_0": x + residual,
        "model.layers.1.post_attention_layernorm-output": PARTS["q"],
        "model.layers.1.mlp.act_fn-output": PARTS["gate"],
        "model.layers.1.mlp.up_proj-output": PARTS["up"],
        "model.layers.1-output": PARTS["down"] + residual,
        "model.norm-output": PARTS["k"],
    }
    theirs: Tensors = {
        "model.layers.1.self_attn.attn-output": PARTS["v"],
        "model.layers.1.post_attention_layernorm-input_0": x,
        "model.layers.1.post_attention_layernorm-input_1": residual,
        "model.layers.1.post_attention_layernorm-output_0": PARTS["q"],
        "model.layers.1.post_attention_layernorm-output_1": x + residual,
        "model.layers.1.mlp.gate_up_proj-output": np.concatenate([PARTS["gate"], PARTS["up"]], axis=-1),
        "model.layers.1.mlp.act_fn-output": PARTS["gate"] * PARTS["up"],
        "model.layers.1-output_0": PARTS["down"],
        "model.layers.1-output_1": residual,
        "model.norm-output_0": PARTS["k"],
    }
    alone = ("attn-output", "layernorm-input_0", "layernorm-input_1")
    for found in (pairs(ours, theirs), {other: name for name, other in pairs(theirs, ours).items()}):
        assert len(found) == 6
        assert sum(name.startswith("sum(") for name in found.values()) == 2  # what the norm is given, and the block
        assert not any(name.endswith(alone) for name in found.values())


def test_megatron_s_first_linear_with_a_gate(split: Tensors) -> None:
    layer = "decoder.layers.1.mlp.linear_fc1-output"
    theirs: Tensors = {layer: np.concatenate([part("gate", 1), part("up", 1)], axis=-1)}
    assert [*pairs(split, theirs).values()] == [layer]


def test_roberta_in_fairseq() -> None:
    ours: Tensors = {f"roberta.encoder.layer.1.attention.self.{n}-output": PARTS[n[0]] for n in ("query", "key")}
    ours["roberta.encoder.layer.1.output.LayerNorm-output"] = PARTS["x"]
    theirs: Tensors = {f"encoder.sentence_encoder.layers.1.self_attn.{n}_proj-output": PARTS[n] for n in "kq"}
    theirs["encoder.sentence_encoder.layers.1.final_layer_norm-output"] = PARTS["x"]
    assert len(pairs(ours, theirs)) == 3
