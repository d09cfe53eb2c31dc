"""The commands on GPUs, each in processes of its own, as a person starts them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tensordiff.dump import open_dump
from tests import processes
from tests.capture.models import Make, script
from tests.gpu.programs import NET


def tensordiff(*arguments: object, **environment: str) -> Any:
    """Run a command."""
    return processes.run([sys.executable, "-m", "tensordiff", *map(str, arguments)], env=os.environ | environment)


@pytest.fixture
def net(tmp_path: Path) -> str:
    return f"py:{script(tmp_path, NET)}:"


def test_verify_names_the_culprit(net: str, tmp_path: Path) -> None:
    ran = tensordiff("verify", f"{net}right", f"{net}wrong", "-o", tmp_path / "out", "--json")
    assert ran.returncode == 1, ran.stderr
    found = json.loads(ran.stdout)
    assert found["culprit"]["name"] == "scale"
    assert (tmp_path / "out" / "with_injection" / "report.json").is_file()


def test_each_side_has_its_own_device(tiny: Make, tmp_path: Path) -> None:
    model = f"hf:{tiny('llama')}"
    more = ("--device", "cpu", "--candidate-device", "gpu", "--keep", tmp_path / "kept")
    ran = tensordiff("compare", model, model, "--json", *more)
    assert ran.returncode == 0, ran.stderr
    devices = [open_dump(tmp_path / "kept" / side).facts["device"] for side in ("reference", "candidate")]
    assert devices == ["cpu", "cuda:0"]


def test_a_search_reruns_the_candidate_in_one_process(net: str, tmp_path: Path) -> None:
    for function in ("right", "wrong"):
        assert tensordiff("capture", f"{net}{function}", "-o", tmp_path / function).returncode == 0
    ran = tensordiff("bisect", tmp_path / "right", tmp_path / "wrong", "--rerun", "--json")
    assert ran.returncode == 1, ran.stderr
    assert json.loads(ran.stdout)["first_bad"]["name"] == "scale"


def test_replay(net: str, tmp_path: Path) -> None:
    assert tensordiff("capture", f"{net}wrong", "-o", tmp_path / "dump").returncode == 0
    ran = tensordiff("replay", tmp_path / "dump", "last", "-o", tmp_path / "bundle")
    assert ran.returncode == 0, ran.stderr
    assert "it says the same" in ran.stderr
    there = processes.run([sys.executable, tmp_path / "bundle" / "repro.py", "--device", "cuda"])
    assert there.returncode == 0 and "on cuda; it was recorded on cuda:" in there.stdout, there.stderr


def test_doctor_compares_a_small_model_on_the_cpu_and_on_the_gpu() -> None:
    ran = tensordiff("doctor", "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    checks = {check["what"]: check for check in json.loads(ran.stdout)["checks"]}
    import torch

    name = torch.cuda.get_device_name(0)
    assert name in checks["torch devices"]["says"]
    assert checks["self-check on cuda:0"]["state"] == "ok"


def test_doctor_says_where_a_gpu_computes_wrong(fake: Any) -> None:
    ran = tensordiff("doctor", "--json", FAKE_CUDA_WRONG="1")
    assert ran.returncode == 2
    checks = {check["what"]: check for check in json.loads(ran.stdout)["checks"]}
    assert checks["self-check on cuda:0"]["state"] == "problem"
