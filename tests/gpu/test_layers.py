"""One layer on a GPU: replayed, made into a bundle, looked into."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tensordiff.capture.events import Note
from tensordiff.dump import open_dump
from tests import processes
from tests.capture.engines.torch.test_replay import replay
from tests.capture.models import Make, run_here, script
from tests.gpu.agreement import assert_same, rel_l2
from tests.gpu.programs import NET, POSITIONS


def _source(folder: Path, tiny: Make) -> str:
    text = f"""
import torch, transformers
def on(device):
    model = transformers.AutoModelForCausalLM.from_pretrained({str(tiny("llama"))!r}, dtype=torch.float32).eval()
    return model.to(device), {{"input_ids": torch.arange(3, 12)[None].to(device)}}
def cpu():
    return on("cpu")
def gpu():
    return on(f"cuda:{{torch.cuda.device_count() - 1}}")
"""
    return f"py:{script(folder, text)}:"


@pytest.mark.parametrize("layer", ["model.model.layers.1.self_attn", "model.model.layers.0.mlp"])
def test_a_layer_alone_and_its_bundle(tiny: Make, tmp_path: Path, layer: str) -> None:
    import torch

    source = _source(tmp_path, tiny)
    run_here(f"{source}gpu", tmp_path / "dump")
    told = replay(f"{source}gpu", tmp_path / "dump", layer, tmp_path / "again", tmp_path / "bundle")
    before = {entry.key: entry.read() for entry in open_dump(tmp_path / "dump").entries}
    for entry in open_dump(tmp_path / "again").entries:
        assert rel_l2(before[entry.key], entry.read()) < 1e-5, entry.name
    said = [event.text for event in told if isinstance(event, Note)]
    assert any("it says the same" in text for text in said), said
    assert any("is off by" in text and "--device cuda" in text for text in said), said
    weights = torch.load(tmp_path / "bundle" / "weights.pt", weights_only=True)
    assert weights and all(weight.is_cpu for weight in weights.values())  # whoever is sent it may have no GPU
    command = [sys.executable, "-W", "ignore", str(tmp_path / "bundle" / "repro.py")]
    ran = processes.run([*command, "--json", "--device", "cuda"])
    assert ran.returncode == 0, ran.stderr
    assert all(error < 1e-5 for error, _ in json.loads(ran.stdout).values())
    assert "on cpu; it was recorded on cuda:" in processes.run(command).stdout


def test_a_layer_that_is_given_a_device_is_given_the_one_it_runs_on(tmp_path: Path) -> None:
    source = f"py:{script(tmp_path, POSITIONS)}:gpu"
    run_here(source, tmp_path / "dump")
    told = replay(source, tmp_path / "dump", "positions", tmp_path / "again", tmp_path / "bundle")
    said = [event.text for event in told if isinstance(event, Note)]
    assert any("it says the same" in text for text in said), said
    before = {entry.key: entry.read() for entry in open_dump(tmp_path / "dump").entries}
    again = open_dump(tmp_path / "again").entries
    assert again and all(rel_l2(before[entry.key], entry.read()) == 0 for entry in again)
    ran = processes.run([sys.executable, tmp_path / "bundle" / "repro.py", "--json", "--device", "cuda"])
    assert ran.returncode == 0, ran.stderr
    assert all(error == 0 for error, _ in json.loads(ran.stdout).values())


def test_a_layer_is_given_a_strided_input_where_it_runs(tmp_path: Path) -> None:
    source = f"py:{script(tmp_path, POSITIONS)}:gpu"
    run_here(source, tmp_path / "dump")
    replay(source, tmp_path / "dump", "last", tmp_path / "again")
    before = {entry.key: entry.read() for entry in open_dump(tmp_path / "dump").entries}
    again = open_dump(tmp_path / "again").entries
    assert again and all(rel_l2(before[entry.key], entry.read()) == 0 for entry in again)


def test_operations(tiny: Make, tmp_path: Path) -> None:
    source = _source(tmp_path, tiny)
    for function in ("cpu", "gpu"):
        run_here(f"{source}{function}", tmp_path / function, ops="model.layers.1.mlp")
    assert_same(open_dump(tmp_path / "cpu"), open_dump(tmp_path / "gpu"))


def test_another_side_s_layer_is_run_on_the_cpu_s_inputs(tmp_path: Path) -> None:
    source = f"py:{script(tmp_path, NET)}:"
    run_here(f"{source}right", tmp_path / "dump")
    replay(f"{source}wrong", tmp_path / "dump", "scale", tmp_path / "again")
    (given,) = [entry for entry in open_dump(tmp_path / "again").entries if entry.name == "model.scale-output"]
    (before,) = [entry for entry in open_dump(tmp_path / "dump").entries if entry.name == "model.scale-output"]
    assert rel_l2(before.read(), given.read()) == pytest.approx(0.5, rel=1e-3)
    replay(f"{source}wrong", tmp_path / "dump", "last", tmp_path / "last")
    assert open_dump(tmp_path / "last").entries
