"""``tensordiff verify``: the folder it leaves, both scenarios, sources and suites."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.command import CANDIDATE, MAX, REFERENCE, Call, assert_one_sentence, capturing, process
from tests.making import SAMPLES

SCENARIO = {
    "module_names_reference.txt", "module_names_candidate.txt", "mse_plot.png", "layer_verification_report.txt",
    "report.html", "report.json",
}  # fmt: skip
LAYERS = {"reference_layers", "candidate_layers"}
INJECTED = str(SAMPLES / "candidate_injected")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_tree_of_two_dumps(call: Call, tmp_path: Path) -> None:
    said = call("verify", REFERENCE, CANDIDATE, "-o", tmp_path / "v")
    assert said.status == 1
    assert said.out.startswith("layers.1.mlp.act_fn is the first place that is wrong by itself")
    assert names(tmp_path / "v") == {"without_injection", "with_injection", "summary.md"}
    assert names(tmp_path / "v/without_injection") == names(tmp_path / "v/with_injection") == SCENARIO


def test_the_summary_lays_both_side_by_side(call: Call, tmp_path: Path) -> None:
    call("verify", REFERENCE, CANDIDATE, "-o", tmp_path)
    text = (tmp_path / "summary.md").read_text()
    assert text.startswith("# ✗ diverges: candidate against reference\n")
    assert "|  | without injection | with injection |" in text
    for heading in ("Culprits: wrong by themselves (1)", "Victims", "What it means", "What to try next"):
        assert f"\n## {heading}" in text
    assert "| `layers.1.mlp.down_proj` | 7.89e-02 | 8.84e-08 |" in text


def test_layers_are_kept_where_asked(call: Call, tmp_path: Path) -> None:
    call("verify", REFERENCE, CANDIDATE, "--injected", INJECTED, "-o", tmp_path, "--save-layers")
    assert names(tmp_path / "with_injection") == SCENARIO | LAYERS
    kept = tmp_path / "without_injection"
    said = call("compare", kept / "reference_layers", kept / "candidate_layers", "--json")
    assert json.loads(said.out)["culprit"]["name"] == "layers.1.mlp.act_fn"
    again = call("compare", tmp_path / "with_injection/reference_layers", REFERENCE, "-q")
    assert again.status == 0


def test_module_names_stand_as_they_ran(call: Call, tmp_path: Path) -> None:
    call("verify", REFERENCE, CANDIDATE, "-o", tmp_path)
    lines = (tmp_path / "without_injection/module_names_candidate.txt").read_text().splitlines()
    assert lines[0] == "model.model.embed_tokens"
    assert lines.index("model.model.layers.1.mlp.act_fn") < lines.index("model.model.layers.1.mlp")
    assert len(set(lines)) == len(lines)


def test_injection_that_cannot_be_had_is_left_out_and_said(call: Call, tmp_path: Path) -> None:
    said = call("verify", REFERENCE, MAX, "-o", tmp_path)
    assert said.status == 0
    assert "the scenario with injection was left out: the candidate is a dump" in said.err
    assert names(tmp_path) == {"without_injection", "summary.md"}
    assert "**The scenario with injection was left out**" in (tmp_path / "summary.md").read_text()


def test_json_and_junit(call: Call, tmp_path: Path) -> None:
    said = call("verify", REFERENCE, CANDIDATE, "-o", tmp_path / "v", "--json", "--junit", tmp_path / "j.xml")
    found = json.loads(said.out)
    assert found["culprit"]["name"] == "layers.1.mlp.act_fn"
    assert set(found["scenarios"]) == {"without_injection", "with_injection"}
    assert (tmp_path / "j.xml").read_text().startswith("<?xml")


def test_the_same_input_makes_the_same_folder(tmp_path: Path) -> None:
    for name in ("a", "b"):  # a process each: within one, the compiled pass may have come in between
        assert process("verify", REFERENCE, CANDIDATE, "-o", str(tmp_path / name)).status == 1
    files = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file()]
    assert len(files) == 13
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)


@pytest.mark.parametrize("args", [(), (REFERENCE,)])
def test_too_few_sides(call: Call, tmp_path: Path, args: tuple[str, ...]) -> None:
    assert_one_sentence(call("verify", *args, "-o", tmp_path), "Missing argument", "verify --help")


TINY = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(8, 16), act, nn.Linear(16, 8)

    def forward(self, x):
        return self.down(self.act(self.up(x)))

def made(act):
    torch.manual_seed(0)
    return Net(act).eval(), (torch.ones(2, 8),), {}

def good():
    return made(nn.SiLU())

def bad():
    return made(nn.GELU())

def rolled():
    model, *given = made(nn.SiLU())
    model.up.weight.data = model.up.weight.data.roll(1, 0)
    return model, *given
"""


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_sources_are_captured_and_injected(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(TINY)
    source = f"py:{tmp_path / 'tiny.py'}"
    said = process("verify", f"{source}:good", f"{source}:bad", "-o", str(tmp_path / "v"))
    assert said.status == 1, said.err
    assert said.out.startswith("act is the first place that is wrong by itself")
    assert "even when given the reference's inputs" in said.out
    assert names(tmp_path / "v/with_injection") == SCENARIO
    assert "The layers were not kept" in (tmp_path / "v/summary.md").read_text()


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_weights_are_compared_before_anything_is_injected_and_told_of_the_culprit(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(TINY)
    source = f"py:{tmp_path / 'tiny.py'}"
    said = capturing("verify", f"{source}:good", f"{source}:rolled", "-o", str(tmp_path / "v"), "--weights")
    assert said.status == 1, said.err
    assert said.out.splitlines()[1] == "Its weights differ: rows shifted by -1."
    lines = said.err.splitlines()
    told = lines.index("up.weight: weights differ: rows shifted by -1")
    assert any("given the reference's inputs" in line for line in lines[told:])


def test_help_lists_the_option_for_weights(call: Call) -> None:
    assert "--weights " in call("verify", "--help").out


@pytest.mark.parametrize("here", [".", ".."])
def test_the_folder_one_stands_in(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str) -> None:
    for name in ("run", "run_injected"):
        shutil.copytree(SAMPLES / name.replace("run", "candidate"), tmp_path / name)
    (tmp_path / "run/notes").mkdir()
    monkeypatch.chdir(tmp_path / "run" / ("notes" if here == ".." else "."))
    said = call("verify", REFERENCE, here, "-o", tmp_path / "v")
    assert said.status == 1, said.err
    assert names(tmp_path / "v") == {"without_injection", "with_injection", "summary.md"}
    assert (tmp_path / "v/summary.md").read_text().startswith("# ✗ diverges: run against reference\n")


def test_a_report_is_titled_by_the_folder_one_stands_in(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(MAX, tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    assert "run against reference" in call("report", REFERENCE, ".").out


def test_gradients_are_compared_and_the_injected_run_is_forward_only(call: Call, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "tiny.py").write_text(TINY)
    source = f"py:{tmp_path / 'tiny.py'}:good"
    said = call("verify", source, source, "-o", tmp_path / "out", "--gradients", "--json")
    found = json.loads(said.out)
    assert said.status == 0 and found["verdict"] == "agrees"
    with_gradients, injected = (found["scenarios"][name] for name in ("without_injection", "with_injection"))
    assert with_gradients["pairs"] > 1.5 * injected["pairs"]
    assert injected["verdict"] == "agrees"
