"""Flags that change numbers: read however they were set, and set for ``--deterministic``, in processes of their own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tensordiff.dump import open_dump
from tests import processes
from tests.capture.models import script

pytest.importorskip("torch")

SERVER = """
import json, os, sys, warnings
import torch
from tensordiff.capture.engines.torch.devices.flags import flags, make_deterministic
warnings.simplefilter("ignore")
b = torch.backends
NAMES = ("tf32_matmul", "tf32_cudnn", "float32_matmul_precision", "deterministic_algorithms", "cudnn_deterministic")
for line in sys.stdin:
    setting, deterministic, environment = json.loads(line)
    if os.fork():
        status = os.wait()[1]
        if status:
            sys.exit(f"{setting}: ended with {status}")
        continue
    os.environ.update(environment)
    exec(setting)
    if deterministic:
        make_deterministic()
    found = {name: flags(None)[name] for name in NAMES}
    print(json.dumps(found | {"workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG")}), flush=True)
    os._exit(0)
"""
"""Answers each line in a fork of its own: flags are the process's, and to import torch takes seconds."""


class Case(NamedTuple):
    """A line of Python that sets flags, and what is done after it."""

    setting: str
    deterministic: bool = False
    environment: tuple[tuple[str, str], ...] = ()


ALLOWED = {
    "": (False, True),  # torch's own choice
    "b.cuda.matmul.allow_tf32 = True": (True, True),
    "b.cudnn.allow_tf32 = False": (False, False),
    "torch.set_float32_matmul_precision('high')": (True, True),
    "b.fp32_precision = 'tf32'": (True, True),
    "b.fp32_precision = 'ieee'": (False, False),
    "b.cuda.matmul.fp32_precision = 'tf32'; b.cudnn.conv.fp32_precision = 'ieee'": (True, False),
    "b.cuda.matmul.fp32_precision = 'ieee'": (False, True),
}
"""Whether a setting allows TF32 in matmuls and in convolutions."""
RULED_OUT = (
    "b.cuda.matmul.allow_tf32 = True",
    "b.fp32_precision = 'tf32'",
    "b.cuda.matmul.fp32_precision = 'tf32'",
    "b.cudnn.conv.fp32_precision = 'tf32'; b.fp32_precision = 'tf32'",
)
FORBIDDEN = Case("b.cuda.matmul.allow_tf32 = True", environment=(("NVIDIA_TF32_OVERRIDE", "0"),))
CHOSEN = Case("", deterministic=True, environment=(("CUBLAS_WORKSPACE_CONFIG", ":16:8"),))
CASES = [*map(Case, ALLOWED), *(Case(setting, deterministic=True) for setting in RULED_OUT), FORBIDDEN, CHOSEN]


Told = dict[Case, dict[str, Any]]


@pytest.fixture(scope="module")
def told() -> Told:
    """The flags of each case."""
    plain = {name: value for name, value in os.environ.items() if name != "CUBLAS_WORKSPACE_CONFIG"}
    lines = "".join(json.dumps([*case[:2], dict(case.environment)]) + "\n" for case in CASES)
    ran = processes.run([sys.executable, "-c", SERVER], env=plain, input=lines)
    assert ran.returncode == 0, ran.stderr
    return dict(zip(CASES, map(json.loads, ran.stdout.splitlines()), strict=True))


@pytest.mark.parametrize(("setting", "allowed"), ALLOWED.items())
def test_tf32_is_told_by_whichever_way_it_was_allowed(told: Told, setting: str, allowed: tuple[bool, bool]) -> None:
    found = told[Case(setting)]
    assert (found["tf32_matmul"], found["tf32_cudnn"]) == allowed


def test_the_environment_may_forbid_it(told: Told) -> None:
    assert (told[FORBIDDEN]["tf32_matmul"], told[FORBIDDEN]["tf32_cudnn"]) == (False, False)


@pytest.mark.parametrize("setting", RULED_OUT)
def test_deterministic_rules_it_out_whichever_way_it_was_allowed(told: Told, setting: str) -> None:
    found = told[Case(setting, deterministic=True)]
    assert (found["tf32_matmul"], found["tf32_cudnn"]) == (False, False)
    assert found["deterministic_algorithms"] and found["cudnn_deterministic"] and found["workspace"] == ":4096:8"


def test_a_workspace_that_the_user_chose_stays(told: Told) -> None:
    assert told[CHOSEN]["workspace"] == ":16:8"


NOT_DETERMINISTIC = """
import torch
from torch import nn

class Put(nn.Module):
    def forward(self, x):
        return x.clone().put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))

def model():
    torch.backends.fp32_precision = "ieee"
    return nn.Sequential(nn.Linear(4, 4), Put()), (torch.ones(1, 4),)
"""


def test_a_capture_of_a_program_that_used_the_newer_setting(tmp_path: Path) -> None:
    source = f"py:{script(tmp_path, NOT_DETERMINISTIC)}:model"
    command = [sys.executable, "-m", "tensordiff", "capture", source, "-o", str(tmp_path / "dump")]
    ran = processes.run([*command, "--deterministic"])
    assert ran.returncode == 0, ran.stderr
    facts: Any = open_dump(tmp_path / "dump").facts
    assert facts["flags"]["deterministic_algorithms"] and not facts["flags"]["tf32_cudnn"]
    assert any("not deterministic, though that was asked for: put_" in note for note in facts["notes"])
