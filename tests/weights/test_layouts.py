"""One layout for all layers: a weight transposed where its kind is not, or the other way round, is a finding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensordiff.dump import open_dump
from tensordiff.weights.comparison import WeightsOutcome, compare_weights
from tests.weights.making import Weights, llama, write_sharded

UP, OUT = "model.layers.1.mlp.up_proj.weight", "model.layers.1.self_attn.o_proj.weight"


def compared(tmp_path: Path, reference: Weights, candidate: Weights) -> WeightsOutcome:
    ref, cand = write_sharded(reference, tmp_path / "ref"), write_sharded(candidate, tmp_path / "cand")
    return compare_weights(open_dump(ref), open_dump(cand))


def transposed(weights: Weights, but: str = "") -> Weights:
    """As flax and Conv1D keep them; embedding and head stay."""
    return {
        name: np.ascontiguousarray(array.T) if array.ndim == 2 and "layers" in name and name != but else array
        for name, array in weights.items()
    }


@pytest.mark.parametrize("name", [UP, OUT])
def test_one_that_is_not_transposed_as_all_others_are(tmp_path: Path, name: str) -> None:
    weights = llama(41)
    found = compared(tmp_path, weights, transposed(weights, but=name))
    (row,) = found.findings
    assert found.exit_status == 1 and row.name == name.removeprefix("model.")
    assert row.hint is not None and row.hint.kind == "transposed"
    assert row.sentence == "laid out differently from the other layers: rows and columns are exchanged"


def test_an_oblong_one_that_is_transposed_and_no_other_is(tmp_path: Path) -> None:
    weights = llama(42)
    found = compared(tmp_path, weights, weights | {UP: np.ascontiguousarray(weights[UP].T)})
    assert found.exit_status == 1 and [row.name for row in found.findings] == [UP.removeprefix("model.")]


def test_another_bug_in_a_square_one_keeps_its_hint(tmp_path: Path) -> None:
    weights = llama(43)
    found = compared(tmp_path, weights, transposed(weights | {OUT: weights[OUT] * 2}))
    (row,) = found.findings
    assert row.sentence == "2 times the reference"


def test_all_linear_weights_transposed_are_a_convention_that_is_noted(tmp_path: Path) -> None:
    weights = llama(44)
    found = compared(tmp_path, weights, transposed(weights))
    assert found.verdict == "agrees"
    (note,) = found.notes
    assert note.startswith("taken as laid out [in, out] on one side and [out, in] on the other: layers.0.")
    assert note.endswith("and 20 more")


ODD = "transposed: rows and columns are exchanged, while most other weights have them in order"


def turned(weights: Weights, *parts: str) -> Weights:
    return {
        name: np.ascontiguousarray(array.swapaxes(-1, -2)) if any(part in name for part in parts) else array
        for name, array in weights.items()
    }


@pytest.mark.parametrize("part", ["gate_proj", "down_proj", "embed_tokens", "lm_head"])
def test_one_kind_transposed_in_all_layers_is_a_finding(tmp_path: Path, part: str) -> None:
    weights = llama(44)
    found = compared(tmp_path, weights, turned(weights, part))
    assert found.exit_status == 1 and {row.sentence for row in found.findings} == {ODD}
    assert all(part in row.name and row.hint and row.hint.kind == "transposed" for row in found.findings)


def test_a_transposed_head_does_not_excuse_square_weights(tmp_path: Path) -> None:
    weights = llama(44)
    found = compared(tmp_path, weights, turned(weights, "lm_head", "o_proj"))
    assert {row.name for row in found.findings} == {
        "lm_head.weight", *(f"layers.{k}.self_attn.o_proj.weight" for k in range(3))
    }  # fmt: skip


def with_stacks(weights: Weights) -> Weights:
    """Beside what a Llama has, a stack of experts in every layer."""
    made = np.random.default_rng(3).standard_t(6, (3, 4, 96, 64)).astype(np.float32)
    return weights | {f"model.layers.{k}.mlp.experts.w13_weight": made[k] for k in range(3)}


def test_stacks_have_a_layout_of_their_own_which_excuses_no_linear_weight(tmp_path: Path) -> None:
    weights = with_stacks(llama(44))
    assert compared(tmp_path / "stacks", weights, turned(weights, "experts")).verdict == "agrees"
    found = compared(tmp_path / "both", weights, turned(weights, "experts", "o_proj"))
    assert [row.name for row in found.findings] == [f"layers.{k}.self_attn.o_proj.weight" for k in range(3)]


def test_a_kernel_is_transposed_by_its_name(tmp_path: Path) -> None:
    weights = llama(44)
    made = {
        name.replace(".weight", ".kernel") if "o_proj" in name or "up_proj" in name else name: array
        for name, array in turned(weights, "o_proj", "up_proj").items()
    }
    assert compared(tmp_path, weights, made).verdict == "agrees"
