"""``layer.out`` beside ``layer.in_0``: an output of that layer, and a layer of its own anywhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensordiff.align import align
from tensordiff.align.match import AlignmentPlan
from tensordiff.align.rules.file import RulesFile
from tensordiff.align.rules.tables import MapRule
from tensordiff.dump import open_dump
from tests.making import numbers, save


def ports(path: Path, *names: str) -> list[tuple[str, str]]:
    """Layer and port of every entry."""
    dump = open_dump(save(path / "dump.safetensors", {name: np.zeros(3, np.float32) for name in names}))
    return [(entry.layer, entry.port) for entry in dump.entries]


@pytest.mark.parametrize("joint", [".", "/"])
def test_the_output_of_a_layer_that_has_such_an_input(tmp_path: Path, joint: str) -> None:
    names = [f"attn{joint}in_0", f"attn{joint}out", f"attn{joint}q{joint}in_0", f"attn{joint}q{joint}out", "norm"]
    found = [("attn", "input_0"), ("attn", "output"), (f"attn{joint}q", "input_0"), (f"attn{joint}q", "output")]
    assert ports(tmp_path, *names) == [*found, ("norm", "output")]


def test_a_layer_called_out_among_them(tmp_path: Path) -> None:
    names = ["attn.in_0", "attn.out.in_0", "attn.out.out", "attn.out"]
    found = [("attn", "input_0"), ("attn.out", "input_0"), ("attn.out", "output"), ("attn", "output")]
    assert ports(tmp_path, *names) == found


def test_where_all_are_spelled_so_embeddings_are_too(tmp_path: Path) -> None:
    assert ports(tmp_path, "embed.out", "mlp.in_0", "mlp.out")[0] == ("embed", "output")


def test_calls_are_told_apart(tmp_path: Path) -> None:
    dump = open_dump(save(tmp_path / "d.safetensors", {n: np.zeros(3, np.float32) for n in ("a(2).in_0", "a(2).out")}))
    assert [(entry.layer, entry.port, entry.call) for entry in dump.entries] == [
        ("a", "input_0", 2),
        ("a", "output", 2),
    ]


@pytest.mark.parametrize(
    "names",
    [
        ("attn.q", "attn.out", "attn"),  # no inputs
        ("attn.in_0", "attn.out.in_0", "attn.out", "attn"),  # outputs have no port: this one is of a projection
        ("attn.in_0", "attn.out", "attn.out_0"),
        ("other.in_0", "attn.out", "attn"),
    ],
)
def test_other_layers_called_out_stay(tmp_path: Path, names: tuple[str, ...]) -> None:
    assert ("attn.out", "output") in ports(tmp_path, *names)


def test_inputs_and_outputs_are_paired_with_those_of_our_own_names(tmp_path: Path) -> None:
    values = {"mlp.in_0": numbers(4, 8), "mlp.out": numbers(4, 8, seed=1)}
    ours = {"mlp-input_0": values["mlp.in_0"], "mlp-output": values["mlp.out"]}
    made = align(open_dump(save(tmp_path / "a.safetensors", ours)), open_dump(save(tmp_path / "b.safetensors", values)))
    assert [(pair.reference.name, pair.candidate.name) for pair in made.pairs] == [
        ("mlp-input_0", "mlp.in_0"),
        ("mlp-output", "mlp.out"),
    ]


def test_maps_may_use_the_names_as_they_are_written(tmp_path: Path) -> None:
    theirs = {f"h.{i}.{port}": numbers(4, 8, seed=i) for i in range(2) for port in ("in_0", "out")}
    ours = {f"layers.{i}": numbers(4, 8, seed=i) for i in range(2)}
    sides = open_dump(save(tmp_path / "a.safetensors", ours)), open_dump(save(tmp_path / "b.safetensors", theirs))
    rules = RulesFile(maps=(MapRule("layers.0", "h.0.out"),))
    made = align(*sides, AlignmentPlan.for_dumps(*sides, rules))
    assert [(pair.reference.name, pair.candidate.name) for pair in made.pairs] == [
        ("layers.0", "h.0.out"),
        ("layers.1", "h.1.out"),
    ]
