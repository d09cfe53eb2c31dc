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


def test_a_kind_that_is_transposed_in_all_layers_is_a_convention(tmp_path: Path) -> None:
    weights = llama(44)
    turned = {name: array.T.copy() if "up_proj" in name else array for name, array in weights.items()}
    assert compared(tmp_path, weights, turned).verdict == "agrees"
    assert compared(tmp_path / "all", weights, transposed(weights)).verdict == "agrees"
