"""``tensordiff verify``: the folder it leaves, both scenarios, sources and suites."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.command import CANDIDATE, MAX, REFERENCE, Call, assert_one_sentence, process
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


# --- suites ---------------------------------------------------------------------------------------


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    for name in ("reference", "max", "candidate"):
        shutil.copytree(SAMPLES / name, tmp_path / "dumps" / name)
    path = tmp_path / "suite.toml"
    path.write_text(
        """
        [[model]]
        name = "healthy"
        reference = "dumps/reference"
        candidate = "dumps/max"

        [[model]]
        name = "broken"
        reference = "dumps/reference"
        candidate = "dumps/candidate"

        [[model]]
        name = "allowed"
        reference = "dumps/reference"
        candidate = "dumps/candidate"
        threshold = 0.5
        """
    )
    return path


def test_a_suite_goes_on_and_sums_up(call: Call, suite: Path, tmp_path: Path) -> None:
    said = call("verify", "--suite", suite, "-o", tmp_path / "v")
    assert said.status == 1
    lines = said.out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["✓", "healthy", "agrees"], ["✗", "broken", "diverges"], ["✓", "allowed", "agrees"],
    ]  # fmt: skip
    assert lines[1].endswith("layers.1.mlp.act_fn 8.28e-02")
    summary = (tmp_path / "v/summary.md").read_text()
    assert summary.startswith("# 2 of 3 models hold\n")
    assert "[broken](broken/summary.md)" in summary
    assert (tmp_path / "v/broken/without_injection/report.html").is_file()


def test_a_suite_is_resumed(call: Call, suite: Path, tmp_path: Path) -> None:
    first = call("verify", "--suite", suite, "-o", tmp_path / "v")
    assert first.err.count(": verifying") == 3
    again = call("verify", "--suite", suite, "-o", tmp_path / "v")
    assert again.err.count(": done already") == 3
    assert (again.status, again.out) == (first.status, first.out)
    suite.write_text(suite.read_text().replace("threshold = 0.5", "threshold = 0.6"))
    assert call("verify", "--suite", suite, "-o", tmp_path / "v").err.count(": verifying") == 1
    assert call("verify", "--suite", suite, "-o", tmp_path / "v", "--fresh").err.count(": verifying") == 3


def test_a_suite_is_done_again_when_its_session_file_changed(call: Call, suite: Path, tmp_path: Path) -> None:
    session = tmp_path / "s.json"
    session.write_text(json.dumps({"schema": "tensordiff.session/1"}))
    words = ("verify", "--suite", suite, "-o", tmp_path / "v", "--session", session)
    assert call(*words).err.count(": verifying") == 3
    assert call(*words).err.count(": done already") == 3
    said = "[[tolerance]]\nmatch = ''\nrel_l2 = 0.0\n"
    session.write_text(json.dumps({"schema": "tensordiff.session/1", "rules": {"said": said, "over": ""}}))
    again = call(*words)
    assert again.err.count(": verifying") == 3
    assert again.out.startswith("✗ healthy")


def test_a_model_that_cannot_be_verified_stops_no_other(call: Call, suite: Path, tmp_path: Path) -> None:
    suite.write_text(suite.read_text().replace("dumps/candidate", "dumps/nowhere"))
    said = call("verify", "--suite", suite, "-o", tmp_path / "v", "--json")
    assert said.status == 2
    assert [model["verdict"] for model in json.loads(said.out)["models"]] == ["agrees", "unknown", "unknown"]
    again = call("verify", "--suite", suite, "-o", tmp_path / "v")
    assert again.err.count(": verifying") == 2


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("x = ", "is not valid TOML"),
        ("", "a suite is [[model]] tables"),
        ("[[model]]\nname = '../up'\nreference = 'a'\ncandidate = 'b'", "becomes a folder"),
        ("[[model]]\nname = 'a'\ncandidate = 'b'", "'reference' is missing"),
        ("[[model]]\nname = 'a'\nreference = 'a'\ncandidate = 'b'\nodd = 1", "a [[model]] says odd"),
        ("[[model]]\nname = 'a'\nreference = 'a'\ncandidate = 'b'\nsettings = {odd = 1}", "unknown settings: odd"),
        ("[[model]]\nname = 'a'\nreference = 'a'\ncandidate = 'b'\nthreshold = 'x'", "model a: threshold is 'x'"),
        ("[[model]]\nname = 'a'\nreference = 'a'\ncandidate = 'b'\natol = nan", "model a: atol is nan; it is a number"),
        ("[[model]]\nname = 'a'\nreference = 'a'\ncandidate = 'b'\nrtol = -1", "model a: rtol is -1; it is a number"),
        ("[[model]]\nname = 'a'\nreference = 'a'\ncandidate = 'b'\nthreshold = inf", "model a: threshold is inf"),
        ("[[model]]\nname = 'a'\nreference = 'a'\ncandidate = 'b'\natol = true", "model a: atol is True"),
        ("[[model]]\nname = 'a'\nreference = 'a'\ncandidate = 'b'\nstep = -1", "model a: step = -1"),
        ("[[model]]\nname = 'a'\nreference = 'a'\ncandidate = 'b'\nonly = 3", "only = 3"),
        (2 * "[[model]]\nname = 'a'\nreference = 'a'\ncandidate = 'b'\n", "the same name"),
    ],
)  # fmt: skip
def test_suites_that_are_wrong(call: Call, tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "s.toml").write_text(text)
    assert_one_sentence(call("verify", "--suite", tmp_path / "s.toml", "-o", tmp_path / "v"), "s.toml", part)


def test_a_suite_and_two_sides(call: Call, suite: Path, tmp_path: Path) -> None:
    said = call("verify", REFERENCE, CANDIDATE, "--suite", suite, "-o", tmp_path / "v")
    assert_one_sentence(said, "give a suite or two sides")


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
