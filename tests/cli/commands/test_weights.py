"""``tensordiff weights``, and ``compare`` of two checkpoints: text, JSON, exit status."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from tensordiff.dump.native.writer import DumpWriter
from tests.cli.command import Call, assert_one_sentence
from tests.weights.making import llama, write_gguf, write_npz, write_sharded

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint, and one with a bug in two layers."""
    wrong = llama(21)
    for k in (0, 1):
        name = f"model.layers.{k}.self_attn.q_proj.weight"
        wrong[name] = wrong[name].reshape(-1, 2, 8, 64).swapaxes(1, 2).reshape(64, 64)
    wrong.pop(UP)
    return write_sharded(llama(21), tmp_path / "ref"), write_sharded(wrong, tmp_path / "cand")


def test_findings_of_many_layers_are_one_line(call: Call, sides: tuple[Path, Path]) -> None:
    said = call("weights", *sides)
    assert said.status == 1
    assert "✗ layers.{0-1}.self_attn.q_proj.weight (2)" in said.out
    assert "rows permuted in blocks of 16 (rope: halves interleaved)" in said.out
    assert "- layers.1.mlp.up_proj.weight" in said.out
    assert "verdict: diverges" in said.out
    assert "its input" not in said.out and "first at" not in said.out
    assert said.err == ""


def test_all_of_them(call: Call, sides: tuple[Path, Path]) -> None:
    said = call("weights", *sides, "--all")
    assert "✓ layers.2.mlp.up_proj.weight" in said.out
    assert said.status == 1


def test_equal_checkpoints(call: Call, sides: tuple[Path, Path]) -> None:
    said = call("weights", sides[0], sides[0])
    assert (said.status, said.err) == (0, "")
    assert "✓ 30 agrees" in said.out


@pytest.mark.parametrize("command", ["weights", "compare"])
def test_json(call: Call, sides: tuple[Path, Path], command: str) -> None:
    said = call(command, *sides, "--json")
    found = json.loads(said.out)
    assert said.status == 1
    assert found["schema"] == f"tensordiff.{command}/1"
    assert (found["kind"], found["verdict"], found["culprit"]) == ("weights", "diverges", None)
    assert found["counts"] == {"agrees": 27, "diverges": 2, "missing": 1, "unexpected": 0, "unknown": 0}
    assert found["alignment"]["orphans"] == {"reference": [UP], "candidate": []}
    first = found["findings"][0]
    assert (first["name"], first["hint"]["kind"]) == ("layers.0.self_attn.q_proj.weight", "rope rows")
    assert first["diff"]["rel_l2"] > 1
    assert found["groups"][0]["parameters"] == [f"layers.{k}.self_attn.q_proj.weight" for k in (0, 1)]
    assert {"reference", "candidate", "pairs", "summary", "doubts", "notes"} <= set(found)


def test_compare_knows_two_checkpoints(call: Call, sides: tuple[Path, Path]) -> None:
    said = call("compare", *sides)
    assert said.status == 1
    assert "rows permuted in blocks of 16" in said.out
    assert "inputs" not in said.out


def test_a_tolerance_of_the_user(call: Call, tmp_path: Path) -> None:
    near = llama(21)
    near[UP] = near[UP] * np.float32(1.001)
    sides = write_sharded(llama(21), tmp_path / "ref"), write_sharded(near, tmp_path / "cand")
    assert call("weights", *sides).status == 1
    assert call("weights", *sides, "--threshold", "0.01").status == 0
    assert call("weights", *sides, "--rtol", "0.0001").status == 1
    assert call("weights", *sides, "--only", "layers.2").status == 0
    said = call("weights", *sides, "--only", "nothing")
    assert said.status == 2
    assert "none of the 30 parameters is named like 'nothing'; without --only all are compared" in said.err


def test_a_damaged_shard_is_never_passed_over(call: Call, sides: tuple[Path, Path]) -> None:
    shard = next(sides[0].glob("*-00002-*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-4000])
    said = call("weights", sides[0], sides[0])
    assert said.status == 2
    assert "safetensors" in said.err


def test_a_truncated_gguf(call: Call, tmp_path: Path) -> None:
    clean = write_gguf(llama(21), tmp_path / "a.gguf")
    cut = tmp_path / "b.gguf"
    cut.write_bytes(clean.read_bytes()[:-5000])
    said = call("weights", clean, cut)
    assert said.status in (1, 2)
    assert "truncated" in said.out + said.err


def test_activations_are_no_parameters(call: Call, tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "run") as writer:
        writer.add("layers.0-output", np.ones(3, np.float32))
    said = call("weights", tmp_path / "run", tmp_path / "run")
    assert said.status == 2
    assert "capture it again with --weights" in said.err


def test_names_from_outside_are_printed_escaped(call: Call, tmp_path: Path) -> None:
    name = "a\x1b[31mb.weight"
    one = {name: np.arange(40, dtype=np.float32).reshape(4, 10), "c.weight": np.ones(4, np.float32)}
    other = one | {name: one[name] * 3}
    said = call("weights", write_sharded(one, tmp_path / "a"), write_sharded(other, tmp_path / "b"))
    assert said.status == 1
    assert "\x1b[31m" not in said.out


def test_help_teaches(call: Call) -> None:
    said = call("weights", "--help")
    assert "transposed" in said.out and "Exit status" in said.out


@pytest.mark.parametrize("command", [["report"], ["bisect", "--auto"], ["tolerances"], ["compare", "--step", "1"]])
def test_what_is_about_runs_says_where_to_go(call: Call, sides: tuple[Path, Path], command: list[str]) -> None:
    said = call(*command, *sides)
    assert said.status == 2
    assert "both sides are checkpoints, not runs; compare their parameters with tensordiff weights" in said.err


def test_align_still_pairs_them(call: Call, sides: tuple[Path, Path]) -> None:
    assert call("align", *sides).status == 0


def test_a_ci_gets_the_same_verdicts(call: Call, sides: tuple[Path, Path], tmp_path: Path) -> None:
    said = call("compare", *sides, "--junit", tmp_path / "junit.xml", "--json")
    assert said.status == 1 and json.loads(said.out)["counts"]["diverges"] == 2
    written = (tmp_path / "junit.xml").read_text("utf-8")
    assert 'tests="30" failures="3" errors="0"' in written
    assert 'type="missing" message="is not in the candidate' in written


def test_a_distributed_checkpoint(call: Call, tmp_path: Path) -> None:
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    import torch

    clean, wrong = llama(22), llama(22)
    wrong[UP] = -wrong[UP]
    for weights, name in ((clean, "clean"), (wrong, "wrong")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = {key: torch.from_numpy(array.copy()) for key, array in weights.items()}
            dcp.save(state, checkpoint_id=str(tmp_path / name), no_dist=True)
    reference = write_sharded(clean, tmp_path / "hf")
    assert call("weights", reference, tmp_path / "clean").status == 0
    said = call("compare", reference, tmp_path / "wrong")
    assert said.status == 1
    assert "the sign is turned" in said.out


def test_flax_parameters(call: Call, tmp_path: Path) -> None:
    weights = llama(23)
    made = {}
    for name, array in weights.items():
        path = name.removesuffix(".weight").replace(".", "/").replace("layers/", "layers_")
        kind = "kernel" if array.ndim == 2 and "embed" not in name else "embedding" if array.ndim == 2 else "weight"
        made[f"params/{path}/{kind}"] = np.ascontiguousarray(array.T) if kind == "kernel" else array
    said = call("weights", write_sharded(weights, tmp_path / "hf"), write_npz(made, tmp_path / "flax.npz"))
    assert (said.status, said.err) == (0, "")


def test_a_source_is_refused_with_what_to_give(call: Call, sides: tuple[Path, Path]) -> None:
    said = call("weights", "hf:some/model", sides[1])
    assert_one_sentence(said, "hf:some/model: is a source", "capture the source with --weights")
