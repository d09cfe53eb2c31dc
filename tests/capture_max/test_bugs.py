"""Bugs planted on MAX's side, in weights and in the config: the culprit is named, and only it is wrong alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensordiff.capture.settings import Injection
from tests.capture_max.making import with_weights
from tests.capture_max.running import Compared, Sides, capture, compare

Weights = dict[str, Any]
Both = Callable[[str, str], Sides]
_ALONE = 1e-4
"""Well above rounding in float32, well below every bug here."""


def _transpose(weights: Weights) -> None:
    name = "model.layers.1.self_attn.o_proj.weight"
    weights[name] = weights[name].T


def _swap(weights: Weights) -> None:
    key, value = (f"model.layers.1.self_attn.{name}_proj.weight" for name in "kv")
    weights[key], weights[value] = weights[value], weights[key]


def _round(weights: Weights) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    weights[name] = weights[name].bfloat16().float()


def _scale_norm(weights: Weights) -> None:
    name = "model.layers.0.post_attention_layernorm.weight"
    weights[name] = weights[name] + 1  # as an engine that adds 1 to norms would take it


BAD_WEIGHTS = {
    "transposed": (_transpose, "layers.1.self_attn.o_proj"),
    "swapped": (_swap, "layers.1.self_attn.qkv_proj"),
    "rounded": (_round, "layers.1.mlp.down_proj"),
    "norm": (_scale_norm, "layers.0.post_attention_layernorm"),
}
BAD_CONFIG: dict[str, tuple[dict[str, Any], str, str]] = {
    "rope theta": ({"rope_parameters.rope_theta": 100.0}, "layers.0.self_attn", r"self_attn"),
    "eps": ({"rms_norm_eps": 0.01}, "layers.0.input_layernorm", r"norm"),
}


def _holders(name: str) -> set[str]:
    """The layer and what holds it: they are wrong with right inputs too."""
    parts = name.split(".")
    return {".".join(parts[:k]) for k in range(2, len(parts) + 1)}


def _both_ways(both: Sides, name: str, model: Path | None = None, **said: Any) -> Compared:
    plain = both.on_max(name, model, **said)
    injected = both.on_max(f"{name}-injected", model, inject=Injection(str(both.reference)), **said)
    return compare(both.reference, plain, injected)


def _three_ways(model: Path, folder: Path, ours: dict[str, Any], theirs: dict[str, Any]) -> Compared:
    """A reference and a candidate that are told different things, and the candidate injected."""
    reference = capture(f"hf:{model}", folder / "hf", attn_implementation="eager", **ours).path
    candidate = capture(f"max:{model}", folder / "max", **theirs).path
    injected = capture(f"max:{model}", folder / "injected", inject=Injection(str(reference)), **theirs).path
    return compare(reference, candidate, injected)


@pytest.mark.parametrize("name", BAD_WEIGHTS)
def test_wrong_weight(sides: Both, tmp_path: Path, name: str) -> None:
    change, culprit = BAD_WEIGHTS[name]
    both = sides("llama", "float32")
    found = _both_ways(both, name, with_weights(both.model, tmp_path / "model", change))
    assert found.outcome.verdict == "diverges"
    assert found.culprit == culprit
    alone = found.injected(above=_ALONE)
    assert culprit in alone
    assert alone <= _holders(culprit)


@pytest.mark.parametrize("name", BAD_CONFIG)
def test_wrong_config_of_a_shortened_model(sides: Both, name: str) -> None:
    config, culprit, part = BAD_CONFIG[name]
    both = sides("llama", "float32")
    folder, said = both.folder / name.replace(" ", "-"), {"num_hidden_layers": 1, "input_ids": tuple(both.token_ids)}
    found = _three_ways(both.model, folder, said, said | {"config": config})
    assert found.outcome.verdict == "diverges"
    assert found.culprit == culprit
    assert not any("layers.1" in entry.layer for entry in found.session.candidate.entries)
    alone = found.injected(above=_ALONE)
    assert alone
    assert all(part in each for each in alone - {"layers.0"})


def test_activation_that_max_ignores(sides: Both) -> None:
    """MAX's Llama computes silu whatever the config says: see docs/max.md."""
    both = sides("llama", "float32")
    said = {"config": {"hidden_act": "gelu"}, "input_ids": tuple(both.token_ids)}
    found = _three_ways(both.model, both.folder / "gelu", said, said)
    assert found.culprit == "layers.0.mlp"
    assert found.injected(above=_ALONE) == {"layers.0.mlp", "layers.0", "layers.1.mlp", "layers.1"}
