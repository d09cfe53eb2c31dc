"""``--weights``: the parameters as each engine holds them once it has loaded, against the checkpoint they came from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.numpy import save_file

from tensordiff.dump import open_dump
from tensordiff.weights.comparison import WeightsOutcome, compare_weights
from tests.capture.engines.onnx.graphs import exported_function
from tests.capture.models import Make, compared, run_here, script

pytest.importorskip("torch")
pytest.importorskip("transformers")

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 8, bias=False)
        self.register_buffer("table", torch.linspace(0, 1, 5))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, x):
        return self.last(self.norm(self.first(x)))

def good():
    torch.manual_seed(0)
    return Net().eval(), (torch.linspace(-1, 1, 48).reshape(3, 16),)

def bad():
    net, args = good()
    net.last.weight.data = -net.last.weight.data
    return net, args
"""


def told(outcome: WeightsOutcome) -> list[tuple[str, str]]:
    return [(row.name, row.sentence) for row in outcome.findings]


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "bert", "gemma3"])
def test_what_transformers_loaded_is_the_checkpoint(tiny: Make, tmp_path: Path, name: str) -> None:
    folder = tiny(name)
    ran = run_here(f"hf:{folder}", tmp_path / "run", weights=True, input_ids=(3, 4, 5))
    captured = open_dump(ran.path)
    outcome = compare_weights(open_dump(folder), captured)
    assert told(outcome) == []
    assert outcome.verdict == "agrees"
    assert ran.done.entries == len(captured.entries)
    assert captured.parameters


def test_weights_are_not_written_unasked(tiny: Make, tmp_path: Path) -> None:
    assert not open_dump(run_here(f"hf:{tiny('llama')}", tmp_path / "run", input_ids=(3, 4)).path).parameters


def test_a_users_model(tmp_path: Path) -> None:
    source = f"py:{script(tmp_path, NET)}:"
    for name in ("good", "bad"):
        run_here(f"{source}{name}", tmp_path / name, weights=True)
    held = [entry.layer for entry in open_dump(tmp_path / "good").parameters]
    assert held == ["table", "first.weight", "first.bias", "norm.weight", "norm.bias", "last.weight"]
    outcome = compare_weights(open_dump(tmp_path / "good"), open_dump(tmp_path / "bad"))
    assert told(outcome) == [("last.weight", "the sign is turned: -1 times the reference")]
    session = compared(tmp_path / "good", tmp_path / "bad")
    culprit = session.outcome(session.rows()).culprit
    assert culprit is not None and culprit.pair.name == "last"
    hint = session.hint(culprit)
    assert hint is not None
    assert hint.sentence == "its weights differ: the sign is turned: -1 times the reference"


@pytest.mark.parametrize("dynamo", [False, True], ids=["traced", "dynamo"])
def test_an_exported_graph(tmp_path: Path, dynamo: bool) -> None:
    source = f"py:{script(tmp_path, NET)}:"
    run_here(f"{source}good", tmp_path / "good", weights=True)
    for name in ("good", "bad"):
        path = exported_function(f"{source}{name}", tmp_path / f"{name}.onnx", dynamo=dynamo)
        given = onnx.load(path).graph.input[0].name
        save_file({given: np.linspace(-1, 1, 48, dtype=np.float32).reshape(3, 16)}, tmp_path / "x.safetensors")
        run_here(f"onnx:{path}", tmp_path / f"onnx_{name}", weights=True, inputs=str(tmp_path / "x.safetensors"))
    clean = compare_weights(open_dump(tmp_path / "good"), open_dump(tmp_path / "onnx_good"))
    # A graph keeps nothing that it does not use.
    assert [(row.name, row.verdict) for row in clean.findings] == [("table", "missing")]
    wrong = compare_weights(open_dump(tmp_path / "good"), open_dump(tmp_path / "onnx_bad"))
    if dynamo:
        assert ("last.weight", "the sign is turned: -1 times the reference") in told(wrong)
    else:  # the tracing exporter gives weights numbers for names: only their values say what they are
        assert ("last.weight", "missing") in [(row.name, row.verdict) for row in wrong.findings]


def test_a_budget_holds_for_weights_too(tmp_path: Path) -> None:
    ran = run_here(f"py:{script(tmp_path, NET)}:good", tmp_path / "run", weights=True, max_bytes=3000)
    dump = open_dump(ran.path)
    assert 0 < len(dump.parameters) < 6
    assert "left out" in str(dump.facts["notes"])
    assert all(np.isfinite(entry.read()).all() for entry in dump.parameters)
