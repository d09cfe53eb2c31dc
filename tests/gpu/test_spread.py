"""Models that accelerate spreads over GPUs, the CPU and the disk: captured, replayed, looked into, hashed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tensordiff.capture.events import Note
from tensordiff.dump import open_dump
from tests import processes
from tests.capture.engines.torch.test_replay import replay
from tests.capture.models import Make, run_here
from tests.gpu.agreement import assert_same, rel_l2
from tests.gpu.programs import spread_source

LAYERS = ("model.model.layers.0", "model.model.layers.1", "model.model.layers.1.self_attn", "model.model.norm", "model")


@pytest.fixture
def source(tiny: Make, tmp_path: Path, two_gpus: None) -> str:
    return spread_source(tmp_path, tiny("llama"))


@pytest.mark.parametrize("function", ["two", "crossed", "offloaded"])
def test_all_it_does_is_what_the_cpu_does(source: str, tmp_path: Path, function: str) -> None:
    run_here(f"{source}cpu", tmp_path / "cpu", weights=True)
    ran = run_here(f"{source}{function}", tmp_path / "spread", weights=True)
    cpu, spread = open_dump(tmp_path / "cpu"), open_dump(tmp_path / "spread")
    assert_same(cpu, spread)
    assert spread.facts["weights_hash"] == cpu.facts["weights_hash"]
    device_map: Any = spread.facts["device_map"]
    assert set(device_map) == {
        "model.embed_tokens", "model.rotary_emb", "model.layers.0", "model.layers.1", "model.norm", "lm_head",
    }  # fmt: skip
    where = set(str(spread.facts["device"]).split(", "))
    assert where == ({"cuda:0"} if function == "offloaded" else {"cuda:0", "cuda:1"})
    assert not [event for event in ran.events if isinstance(event, Note) and "left out" in event.text]


@pytest.mark.parametrize("function", ["two", "crossed", "offloaded", "offloaded_elsewhere"])
def test_a_layer_alone_is_given_its_cache_where_it_computes(source: str, tmp_path: Path, function: str) -> None:
    run_here(f"{source}{function}", tmp_path / "dump")
    before = {entry.key: entry.read() for entry in open_dump(tmp_path / "dump").entries}
    for layer in LAYERS:
        replay(f"{source}{function}", tmp_path / "dump", layer, tmp_path / layer, step=1)
        for entry in open_dump(tmp_path / layer).entries:
            assert rel_l2(before[entry.key], entry.read()) < 1e-5, entry.name


@pytest.mark.parametrize(
    ("function", "layer"), [("two", "model.model.layers.1"), ("offloaded", "model.model.layers.0.mlp")]
)
def test_a_bundle_of_such_a_layer_runs_anywhere(source: str, tmp_path: Path, function: str, layer: str) -> None:
    run_here(f"{source}{function}", tmp_path / "dump")
    told = replay(f"{source}{function}", tmp_path / "dump", layer, tmp_path / "again", tmp_path / "bundle", step=1)
    said = [event.text for event in told if isinstance(event, Note)]
    assert any("runs with torch alone; it says the same" in text for text in said), said
    script_ = tmp_path / "bundle" / "repro.py"
    for more in ([], ["--device", "cuda"]):
        ran = processes.run([sys.executable, "-W", "ignore", script_, "--json", *more])
        assert ran.returncode == 0, ran.stderr
        assert all(error < 1e-5 for error, _ in json.loads(ran.stdout).values())


@pytest.mark.parametrize("layer", ["model.model.layers.0", "model.model.norm"])
def test_operations_are_the_model_s_alone(source: str, tmp_path: Path, layer: str) -> None:
    """accelerate loads weights and moves tensors while the layer runs; neither is the model's."""
    names = {}
    for function in ("cpu", "offloaded", "two"):
        run_here(f"{source}{function}", tmp_path / function, ops=layer)
        names[function] = [entry.name for entry in open_dump(tmp_path / function).entries]
    assert names["offloaded"] == names["cpu"] and names["two"] == names["cpu"]
    assert_same(open_dump(tmp_path / "cpu"), open_dump(tmp_path / "offloaded"))


def test_device_map_auto_uses_both_gpus(tiny: Make, tmp_path: Path, two_gpus: None) -> None:
    source = f"hf:{tiny('llama')}"
    run_here(source, tmp_path / "cpu", device="cpu", steps=2)
    run_here(source, tmp_path / "spread", device="device_map=auto", steps=2)
    spread = open_dump(tmp_path / "spread")
    assert_same(open_dump(tmp_path / "cpu"), spread)
    device_map: Any = spread.facts["device_map"]
    assert len(set(device_map.values())) == 2
