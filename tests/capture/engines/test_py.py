"""``py:`` sources: random numbers from one seed, arguments of every kind, and options that a function cannot honour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError
from tests.capture.models import run_here, script

pytest.importorskip("torch")

FILE = """
import random
import numpy as np
import torch
from torch import nn

MADE = nn.Linear(4, 4)

class Random(nn.Module):
    def forward(self, x):
        return x + random.random(), x + np.random.rand(), x + torch.rand(())

class Odd(nn.Module):
    def __init__(self, buffer):
        super().__init__()
        self.part = nn.Linear(4, 4)
        self.register_buffer("odd", buffer)

    def forward(self, x):
        return self.part(x)

class Method(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = nn.Linear(4, 4)
        self.quick = torch.compile(self.slow, backend="eager")

    def slow(self, x):
        return self.part(x) + 1

    def forward(self, x):
        return self.quick(x)

class Decorated(Method):
    @torch.compile(backend="eager")
    def quick_too(self, x):
        return self.part(x)

    def forward(self, x):
        return self.quick_too(x)

X = torch.ones(2, 4)

def at_import():
    return MADE, (X,)

def chance():
    return Random(), (X,)

def computed():
    y = MADE(X)
    return nn.Bilinear(4, 4, 2), (y,), {"input2": y}

def lazy():
    return nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()).eval(), (X,)

def half_complex():
    return Odd(torch.zeros(4, dtype=torch.complex32)), (X,)

def quarter():
    return Odd(torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)), (X,)

def quantized(scale=0.1):
    return Odd(torch.quantize_per_tensor(torch.ones(4), scale, 0, torch.qint8)), (X,)

def quantized_otherwise():
    return quantized(0.3)

def scripted():
    return torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU())), (X,)

def method():
    return Method(), (X,)

def decorated():
    return Decorated(), (X,)
"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    return f"py:{script(tmp_path, FILE, 'odd_models.py')}:"


def values(path: Path) -> dict[str, Any]:
    return {entry.name: entry.read().tolist() for entry in open_dump(path).entries}


@pytest.mark.parametrize("name", ["at_import", "chance"])
def test_the_seed_is_of_all_random_numbers(name: str, source: str, tmp_path: Path) -> None:
    first, again, other = (
        values(run_here(source + name, tmp_path / folder, seed=seed).path)
        for folder, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    assert first == again
    outputs = [key for key in first if "output" in key]
    assert len(outputs) == (3 if name == "chance" else 1)
    assert all(first[key] != other[key] for key in outputs)


@pytest.mark.parametrize("seed", [-1, 2**40])
def test_a_seed_may_be_any_number_that_torch_takes(seed: int, source: str, tmp_path: Path) -> None:
    assert run_here(source + "chance", tmp_path / "d", seed=seed).done.entries == 4


def test_arguments_may_have_been_computed(source: str, tmp_path: Path) -> None:
    found = values(run_here(source + "computed", tmp_path / "d").path)
    assert found["model-input_0"] == found["model-input_input2"]


def test_a_layer_may_take_its_size_from_what_it_is_given(source: str, tmp_path: Path) -> None:
    ran = run_here(source + "lazy", tmp_path / "d")
    assert ran.done.entries == 6
    facts = open_dump(ran.path).facts
    assert facts["model"]["parameters"] == 4 * 3 + 3 + 3 + 3  # type: ignore[index]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["half_complex", "quarter", "quantized"])
def test_weights_of_any_type_are_hashed(name: str, source: str, tmp_path: Path) -> None:
    facts = open_dump(run_here(source + name, tmp_path / "d").path).facts
    assert str(facts["weights_hash"]).startswith("sha256:")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_hash_tells_quantized_weights_apart(source: str, tmp_path: Path) -> None:
    found = [
        open_dump(run_here(source + name, tmp_path / folder).path).facts["weights_hash"]
        for folder, name in (("a", "quantized"), ("b", "quantized"), ("c", "quantized_otherwise"))
    ]
    assert found[0] == found[1] != found[2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_of_torchscript_is_refused_with_the_reason(source: str, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="nothing was written: 3 modules are TorchScript, which takes no hooks"):
        run_here(source + "scripted", tmp_path / "d")
    assert open_dump(tmp_path / "d").interrupted


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["method", "decorated"])
def test_a_compiled_method_is_run_eagerly_and_it_is_said(name: str, source: str, tmp_path: Path) -> None:
    import torch

    torch.compiler.reset()
    ran = run_here(source + name, tmp_path / "d")
    assert any("it was run eagerly" in note for note in ran.done.facts["notes"])
    assert "model.part-output" in values(ran.path)
    assert torch._dynamo.utils.counters["frames"]["total"] == 0


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"device": "cuda:3"}, "--device"),
        ({"steps": 7}, "--steps"),
        ({"trust_remote_code": True}, "--trust-remote-code"),
        ({"optimized": True}, "--optimized"),
        ({"prefer_module_v3": True}, "--prefer-module-v3"),
    ],
)
def test_what_a_function_cannot_be_told_is_refused(
    given: dict[str, Any], option: str, source: str, tmp_path: Path
) -> None:
    with pytest.raises(CaptureError, match=f"{option} is not for py: sources; say it in the function itself"):
        run_here(source + "chance", tmp_path / "d", **given)
