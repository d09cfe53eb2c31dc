"""Models that accelerate spreads over GPUs, the CPU and the disk: captured, replayed, looked into, hashed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tensordiff.capture.events import Note
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError
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
    ("function", "layer"),
    [("two", "model.model.layers.1"), ("offloaded", "model.model.layers.0.mlp"), ("offloaded", "model.model.norm")],
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


def test_several_gpus_are_the_ones_that_were_named(tiny: Make, tmp_path: Path, fake: Any) -> None:
    command = [sys.executable, "-m", "tensordiff", "capture", f"hf:{tiny('llama')}", "-o", str(tmp_path / "dump")]
    ran = processes.run([*command, "--device", "gpu:0,2"], env=os.environ | {"FAKE_CUDA_DEVICES": "3"})
    assert ran.returncode == 0, ran.stderr
    facts: Any = open_dump(tmp_path / "dump").facts
    assert set(facts["device_map"].values()) == {"0", "2"} and facts["device"] == "cuda:0, cuda:2"


HALF = 250_000
"""Bytes: a GPU that has no more holds about half of the model, whose weights have 460,032."""


@pytest.mark.parametrize(
    ("device", "host", "elsewhere"),
    [("gpu:0,1", None, "disk"), ("device_map=auto", None, "cpu"), ("device_map=auto", 50_000, "disk")],
)
def test_what_the_gpus_have_no_room_for_is_loaded_when_it_is_needed(
    tiny: Make, tmp_path: Path, room: Any, device: str, host: int | None, elsewhere: str
) -> None:
    source = f"hf:{tiny('llama')}"
    run_here(source, tmp_path / "cpu", device="cpu", steps=2, weights=True)
    room(gpu=HALF, host=host)
    run_here(source, tmp_path / "spilled", device=device, steps=2, weights=True)
    cpu, spilled = open_dump(tmp_path / "cpu"), open_dump(tmp_path / "spilled")
    assert_same(cpu, spilled)
    facts: Any = spilled.facts
    assert elsewhere in facts["device_map"].values() and facts["device"].startswith("cuda:0")
    assert facts["weights_hash"] == cpu.facts["weights_hash"]


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (
            "gpu:0,1",
            r"does not fit on gpu:0,1 \(there was no room for \S+\); give --device device_map=auto .*, or --num",
        ),
        ("device_map=auto", r"does not fit on all devices together \(.*\); give --num-hidden-layers"),
    ],
)
def test_a_model_that_there_is_no_room_for_is_refused(
    tiny: Make, tmp_path: Path, room: Any, device: str, said: str
) -> None:
    """It would lie on the disk and be loaded by nothing: it ran on the meta device, to no effect."""
    room(gpu=50_000, host=50_000)
    with pytest.raises(CaptureError, match=said):
        run_here(f"hf:{tiny('llama')}", tmp_path / "dump", device=device)


def test_memory_that_ends_while_a_model_is_loaded_is_told_as_such(
    tiny: Make, tmp_path: Path, room: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    room(gpu=HALF // 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (1 << 30, 1 << 34))  # others took it since
    with pytest.raises(CaptureError, match=r"does not fit on gpu:0,1 \(CUDA out of memory.*; give --device device_map"):
        run_here(f"hf:{tiny('llama')}", tmp_path / "dump", device="gpu:0,1")
