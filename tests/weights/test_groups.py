"""The same finding in many layers is one line, and what it says is true of each of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tensordiff.dump import open_dump
from tensordiff.weights.comparison import compare_weights
from tensordiff.weights.groups import FindingGroup
from tests.weights.making import Weights, llama, write_npz

UP = "model.layers.{}.mlp.up_proj.weight"


def groups(tmp_path: Path, changes: Weights) -> list[FindingGroup]:
    weights = llama(61, layers=4)
    sides = write_npz(weights, tmp_path / "a.npz"), write_npz(weights | changes, tmp_path / "b.npz")
    return compare_weights(open_dump(sides[0]), open_dump(sides[1])).groups()


def test_layers_that_are_swapped_are_told_each(tmp_path: Path) -> None:
    weights = llama(61, layers=4)
    found = groups(tmp_path, {UP.format(1): weights[UP.format(2)], UP.format(2): weights[UP.format(1)]})
    assert [(group.name, group.sentence) for group in found] == [
        ("layers.1.mlp.up_proj.weight", "swapped with layers.2.mlp.up_proj.weight"),
        ("layers.2.mlp.up_proj.weight", "swapped with layers.1.mlp.up_proj.weight"),
    ]


def test_a_layer_is_told_relative_to_each_of_a_group(tmp_path: Path) -> None:
    weights = llama(61, layers=4)
    (found,) = groups(tmp_path, {UP.format(k): weights[UP.format(k - 1)] for k in (1, 2, 3)})
    assert (found.name, len(found.rows)) == ("layers.{1-3}.mlp.up_proj.weight", 3)
    assert found.sentence == "holds layers.{n-1}.mlp.up_proj.weight of the reference (1 layer before)"


def test_other_rows_are_another_finding(tmp_path: Path) -> None:
    weights = llama(61, layers=4)
    changed = {UP.format(k): weights[UP.format(k)].copy() for k in (1, 2, 3)}
    changed[UP.format(1)][:8] = changed[UP.format(2)][40:56] = changed[UP.format(3)][:8] = 0
    found = groups(tmp_path, changed)
    assert [(group.name, group.sentence[:13]) for group in found] == [
        ("layers.{1,3}.mlp.up_proj.weight", "rows 0 to 7 o"), ("layers.2.mlp.up_proj.weight", "rows 40 to 55"),
    ]  # fmt: skip


def test_what_has_no_name_is_told_as_a_range(tmp_path: Path) -> None:
    weights, random = llama(61, layers=4), np.random.default_rng(1)
    noisy = {
        name: (values + 0.003 * (k + 1) * random.standard_normal(values.shape)).astype("f4")
        for k, (name, values) in enumerate((UP.format(k), weights[UP.format(k)]) for k in (1, 2, 3))
    }
    noisy[UP.format(3)][0, 0] = np.nan
    (found,) = groups(tmp_path, noisy)
    assert found.sentence == "rel_l2 0.0607 to 0.124; NaN or infinite on one side in 1 of 3"
