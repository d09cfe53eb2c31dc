"""What is captured on a GPU is what the CPU has: no copy is read before it is there, none is of another tensor."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError
from tests import processes
from tests.capture.engines.test_quantized_as import quantized
from tests.capture.models import Make, run_here, script
from tests.gpu.agreement import assert_same
from tests.gpu.conftest import Captures
from tests.gpu.programs import NET, TYPES


@pytest.mark.parametrize(("name", "steps"), [("llama", 3), ("gpt2", 1), ("t5", 2)])
def test_a_model_on_a_gpu_gives_what_it_gives_on_the_cpu(captures: Captures, tiny: Make, name: str, steps: int) -> None:
    source = f"hf:{tiny(name)}"
    cpu = captures(source, "cpu", device="cpu", steps=steps, weights=True)
    gpu = captures(source, "gpu", device="gpu", steps=steps, weights=True, decode_ids=_decoded(cpu))
    assert_same(cpu, gpu)
    assert gpu.facts["device"] == "cuda:0" and cpu.facts["device"] == "cpu"
    assert gpu.facts["weights_hash"] == cpu.facts["weights_hash"]


def _decoded(dump: Any) -> tuple[int, ...] | None:
    return tuple(dump.facts.get("decode_token_ids") or ()) or None


def test_the_second_gpu(captures: Captures, tiny: Make, two_gpus: None) -> None:
    source = f"hf:{tiny('llama')}"
    gpu = captures(source, "gpu", device="cuda:1")
    assert_same(captures(source, "cpu", device="cpu"), gpu)
    assert gpu.facts["device"] == "cuda:1"


def test_side_streams_all_types_and_what_is_overwritten(captures: Captures, tmp_path: Path) -> None:
    path = script(tmp_path, TYPES)
    assert_same(captures(f"py:{path}:cpu", "cpu"), captures(f"py:{path}:gpu", "gpu"))


@pytest.mark.parametrize("device", ["gpu", "gpu:0,1"])
def test_gradients_of_a_model(captures: Captures, tiny: Make, two_gpus: None, device: str) -> None:
    source = f"hf:{tiny('llama')}"
    cpu, gpu = (captures(source, where.replace(":", "_"), device=where, gradients=True) for where in ("cpu", device))
    assert any("grad" in entry.port for entry in gpu.entries)
    assert_same(cpu, gpu)


def test_gradients_of_what_is_no_logits(captures: Captures, tmp_path: Path) -> None:
    path = script(tmp_path, NET)
    cpu, gpu = (captures(f"py:{path}:{function}", function, gradients=True) for function in ("right", "right_gpu"))
    assert any("grad" in entry.port for entry in gpu.entries)
    assert_same(cpu, gpu)


def test_the_weights_of_a_quantized_candidate(captures: Captures, tiny: Make, tmp_path: Path) -> None:
    source, candidate = f"hf:{tiny('llama')}", str(quantized(tiny("llama"), tmp_path / "quantized"))
    cpu, gpu = (captures(source, device, device=device, quantized_as=candidate) for device in ("cpu", "gpu"))
    assert_same(cpu, gpu)
    assert gpu.facts["quantized_as"] == cpu.facts["quantized_as"] and gpu.facts["device"] == "cuda:0"


def test_the_manifest_says_what_it_ran_on(captures: Captures, tiny: Make) -> None:
    import torch

    facts: Any = captures(f"hf:{tiny('llama')}", "gpu", device="gpu").facts
    (card,) = facts["accelerators"]
    assert card["device"] == "cuda:0" and card["name"] == torch.cuda.get_device_name(0) and card["memory"] > 0
    assert card["vendor"] == ("AMD" if torch.version.hip else "NVIDIA") and card["architecture"]
    assert facts["accelerator_software"]["rocm" if torch.version.hip else "cuda"]
    flags = facts["flags"]
    assert {"tf32_matmul", "tf32_cudnn", "sdpa_backends", "bf16_reduced_precision_reduction"} <= set(flags)
    assert "math" in flags["sdpa_backends"] and not flags["deterministic_algorithms"]


GREEDY = """
import torch
from torch import nn

class Greedy(nn.Module):
    def forward(self, x):
        return torch.zeros(1 << 50, device=x.device)

class Late(nn.Module):
    def forward(self, x):
        raise RuntimeError("CUDA error: device-side assert triggered")

def greedy():
    return nn.Sequential(nn.Linear(2, 2), Greedy()).cuda(), (torch.ones(1, 2).cuda(),)

def late():
    return nn.Sequential(nn.Linear(2, 2), Late()).cuda(), (torch.ones(1, 2).cuda(),)
"""


def test_memory_that_ends_is_told_with_the_layer_and_a_way_out(tmp_path: Path) -> None:
    source = f"py:{script(tmp_path, GREEDY)}:"
    with pytest.raises(CaptureError, match=r"OutOfMemoryError within model\.1: .*device_map=auto"):
        run_here(f"{source}greedy", tmp_path / "dump")
    reached = {entry.name for entry in open_dump(tmp_path / "dump").entries}
    assert "model.0-output" in reached


def test_an_error_that_a_gpu_reports_late_blames_no_layer_for_certain(tmp_path: Path) -> None:
    source = f"py:{script(tmp_path, GREEDY)}:"
    with pytest.raises(CaptureError, match=r"another layer may be the cause: run it with CUDA_LAUNCH_BLOCKING=1"):
        run_here(f"{source}late", tmp_path / "dump")


def test_a_model_that_does_not_fit_is_told_how_it_would(tiny: Make, tmp_path: Path, fake: Any) -> None:
    command = [sys.executable, "-m", "tensordiff", "capture", f"hf:{tiny('llama')}", "-o", str(tmp_path / "dump")]
    ran = processes.run([*command, "--device", "gpu"], env=os.environ | {"FAKE_CUDA_MEMORY": "20000"})
    assert ran.returncode == 2 and "does not fit on cuda:0" in ran.stderr and "device_map=auto" in ran.stderr


# --- in a user's own program -------------------------------------------------------------------------------------

LIBRARY = """
import json, sys, tensordiff, torch
import fake_cuda_devices as devices
blocks, elements = int(sys.argv[2]), int(sys.argv[3])
last = torch.cuda.device_count() - 1

class AddOne(torch.nn.Module):  # in place: no two tensors are the same, and the device needs no memory for them
    def forward(self, x):
        return x.add_(1)

model = torch.nn.Sequential(*(AddOne() for _ in range(blocks)))
x = torch.arange(1024, dtype=torch.float32, device=f"cuda:{last}").repeat(elements // 1024)
before = devices.counts()[f"peak_{last}"]
with torch.no_grad(), tensordiff.capture(model, sys.argv[1]) as capture:
    model(x)
events = torch.cuda.Event.created
found = {"before": before, "after": devices.counts()[f"peak_{last}"], "notes": capture.notes}
found |= {"entries": capture.entries, "events": len(events), "blocking": all(each["blocking"] for each in events)}
print(json.dumps(devices.counts() | found))
"""


def _library(folder: Path, blocks: int, elements: int, **environment: str) -> dict[str, Any]:
    import json

    command = [sys.executable, "-c", LIBRARY, str(folder), str(blocks), str(elements)]
    ran = processes.run(command, env=os.environ | environment)
    assert ran.returncode == 0, ran.stderr
    return dict(json.loads(ran.stdout))


def test_capturing_takes_no_memory_of_the_device_and_a_bounded_part_of_the_host_s(tmp_path: Path, fake: Any) -> None:
    many = _library(tmp_path / "many", 200, 1 << 18)  # 400 tensors of a megabyte
    assert many["after"] == many["before"] and many["pinned_peak"] <= 64 << 20
    assert many["late_copies"] == 0 and many["pinned_used"] == 0
    assert many["blocking"] and many["events"] >= 400
    large = _library(tmp_path / "large", 1, 40 << 20)  # of 160 MB, which is more than may wait
    assert large["after"] == large["before"] and large["pinned_peak"] <= 64 << 20
    for folder, blocks in (("many", 200), ("large", 1)):
        _assert_counted(tmp_path / folder, blocks)


def _assert_counted(folder: Path, blocks: int) -> None:
    """Each entry is what it was when it was seen: the numbers from 0 to 1023, so many times one more."""
    import numpy as np

    times = [0, *(k for block in range(blocks) for k in (block, block + 1)), blocks]
    for entry, more in zip(open_dump(folder).entries, times, strict=True):
        values = entry.read().reshape(-1, 1024)
        assert (values == np.arange(1024, dtype=np.float32) + more).all(), entry.name


def test_without_memory_to_pin_copies_are_waited_for(tmp_path: Path, fake: Any) -> None:
    found = _library(tmp_path / "dump", 3, 1 << 10, FAKE_CUDA_PINNED="1000")
    assert found["pinned_peak"] == 0
    _assert_counted(tmp_path / "dump", 3)


def test_a_cuda_graph_that_is_being_captured_is_left_out_with_a_note(tmp_path: Path, fake: Any) -> None:
    found = _library(tmp_path / "dump", 3, 1 << 10, FAKE_CUDA_GRAPH="1")
    assert found["entries"] == 0 and found["late_copies"] == 0
    assert any("a CUDA graph was being captured" in note for note in found["notes"])


def test_library_mode(tmp_path: Path) -> None:
    import torch

    import tensordiff

    names: dict[str, Any] = {}
    exec(NET, names)
    for function in ("right", "right_gpu"):
        model, inputs = names[function]()
        with torch.no_grad(), tensordiff.capture(model, tmp_path / function):
            model(**inputs)
            model(**{name: value * 2 for name, value in inputs.items()})
    cpu, gpu = (open_dump(tmp_path / function) for function in ("right", "right_gpu"))
    assert_same(cpu, gpu)
    assert gpu.facts["accelerators"] and gpu.facts["weights_hash"] == cpu.facts["weights_hash"]


def test_whether_a_model_changed_is_seen_where_it_lies(fake: Any) -> None:
    """One process makes many captures, and before each it looks whether the model is what it was."""
    import torch

    from tensordiff.capture.engines.torch.program import Step
    from tensordiff.capture.engines.torch.unchanged import state_of

    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(torch.nn.Linear(1 << 10, 1 << 10), torch.nn.LayerNorm(8)).cuda()
    step = Step(model, (), {})
    before = fake.counts()["bytes_to_host"]
    first = state_of(step, with_inputs=False)
    assert fake.counts()["bytes_to_host"] - before < 1 << 10  # of weights of four megabytes
    assert state_of(step, with_inputs=False) == first
    for change in ("weight[3].mul_(-1)", "weight.copy_(weight.flip(0))", "weight[0, 0].add_(1e-6)"):
        exec(change, {"weight": model[0].weight.data})
        changed = state_of(step, with_inputs=False)
        assert {name for name in first if first[name] != changed[name]} == {"model.0.weight"}
        first = changed
