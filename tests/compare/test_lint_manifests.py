"""Configs, sizes and weights of two manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensordiff.compare.lint_manifests import lint_manifests
from tensordiff.dump.model import Dump, MemoryTensor, Origin, entry
from tests.making import numbers

TORCH: dict[str, Any] = {"framework": "torch", "dtype": "float32", "model": {"class": "Llama", "parameters": 10}}


def dump(facts: dict[str, Any], layer: str = "a", module: str | None = "Linear") -> Dump:
    made = entry(layer, MemoryTensor(numbers(3)))._replace(origin=Origin(module_class=module))
    return Dump(Path("d"), "tensordiff", (made,), ordered=True, facts=TORCH | facts)


def found(ours: dict[str, Any], theirs: dict[str, Any], **module: Any) -> list[str]:
    return [f"{one.level}: {one.what}" for one in lint_manifests(dump(ours), dump(theirs, **module))]


@pytest.mark.parametrize("facts", [{}, {"model": None, "config_overrides": None, "weights_hash": None}, {"model": 3}])
def test_what_is_not_said_is_no_finding(facts: dict[str, Any]) -> None:
    full = {"config_overrides": {"a": 1}, "weights_hash": "x"}
    assert found(facts, full) == found(full, facts) == found(facts, facts) == []


def test_other_configs() -> None:
    ours, theirs = {"config_overrides": {"layers": 2, "eps": 1e-5}}, {"config_overrides": {"eps": 1e-6, "rope": "yarn"}}
    assert found(ours, ours) == []
    assert found(ours, theirs) == [
        "warning: the configs were overridden differently: layers 2 and (as the model has it), eps 1e-05 and 1e-06, "
        "rope (as the model has it) and 'yarn'"
    ]


def test_configs_of_two_checkpoints() -> None:
    ours: dict[str, Any] = {"rms_norm_eps": 1e-6, "rope": {"theta": 1e4}, "eos_token_id": 2, "dtype": "float32"}
    theirs = ours | {"rms_norm_eps": 1e-5, "rope": {"theta": 5e5}, "eos_token_id": 3, "dtype": "bfloat16", "more": 1}
    assert found({"config": ours}, {"config": ours}) == found({"config": ours}, {"config": 3}) == []
    assert found({"config": ours}, {"config": theirs}) == [
        "warning: the configs differ: rms_norm_eps 1e-06 and 1e-05, rope.theta 10000.0 and 500000.0"
    ]


def test_other_sizes() -> None:
    assert found({}, {"model": {"class": "Other", "parameters": 12000}}) == [
        "note: the models have 10 and 12,000 parameters"
    ]


def test_other_weights() -> None:
    ours, theirs = {"weights_hash": "sha256:a"}, {"weights_hash": "sha256:b"}
    assert found(ours, ours) == []
    assert found(ours, theirs)[0].startswith("warning: the weights differ, by their hashes")
    assert found(ours, theirs | {"dtype": "bfloat16"}) == []
    assert found(ours, theirs | {"framework": "max"}) == []


def test_other_names_of_parameters_make_another_hash_of_the_same_weights() -> None:
    ours, theirs = {"weights_hash": "sha256:a"}, {"weights_hash": "sha256:b"}
    assert (
        found(ours, theirs, layer="b") == found(ours, theirs, module="Conv") == found(ours, theirs, module=None) == []
    )


GPU: dict[str, Any] = {
    "accelerators": [{"device": "cuda:0", "name": "NVIDIA H100", "architecture": "sm_90"}],
    "accelerator_software": {"driver": "570.86.15", "cuda": "12.8", "cudnn": "91002"},
    "flags": {"sdpa_backends": ["flash", "math"], "bf16_reduced_precision_reduction": True, "tf32_matmul": True},
}
OTHER: dict[str, Any] = {
    "accelerators": [{"device": "cuda:1", "name": "NVIDIA A100", "architecture": "sm_80"}],
    "accelerator_software": {"driver": "550.54", "cuda": "12.8"},
    "flags": {"sdpa_backends": [], "bf16_reduced_precision_reduction": False, "tf32_matmul": False},
}


def test_other_gpus_are_a_note() -> None:
    assert found(GPU, GPU) == []
    assert found(GPU, OTHER) == [
        "note: the GPUs were not the same, or not set the same: cards NVIDIA H100 and NVIDIA A100; "
        "architecture sm_90 and sm_80; driver 570.86.15 and 550.54; attention by flash, math and none; "
        "bfloat16 sums in fewer bits on and off"
    ]


@pytest.mark.parametrize("accelerators", [None, [], 3, [3]])
def test_a_run_on_the_cpu_is_no_other_gpu(accelerators: object) -> None:
    assert found(GPU, OTHER | {"accelerators": accelerators}) == []


def test_the_same_card_has_another_name_in_another_framework() -> None:
    theirs = GPU | {"framework": "max", "accelerators": [{"name": "H100", "architecture": "sm_90"}]}
    assert found(GPU, theirs) == []


def test_what_a_manifest_may_say_otherwise_is_not_compared() -> None:
    assert found(GPU, {"accelerators": [{}], "accelerator_software": 3, "flags": None}) == []
