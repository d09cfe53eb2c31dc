"""Inside a layer: operations and functions, and laying two sides' sequences side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError
from tests.capture.making import Make, compared, run_here, script

pytest.importorskip("torch")

FILE = """
import torch
from torch import nn

def scaled(x, by):
    return x * by

class Inner(nn.Module):
    by = 2.0

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.part = nn.Linear(3, 3)

    def forward(self, x):
        y = scaled(self.part(x), self.by)
        y += 1
        return torch.softmax(y, -1)

class More(Inner):
    def forward(self, x):
        return super().forward(x.clone().abs())

def made(inner):
    return nn.Sequential(nn.Identity(), inner), (torch.ones(2, 3),)

def good():
    return made(Inner())

def bad():
    inner = Inner()
    inner.by = 2.1
    return made(inner)

def more():
    return made(More())
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    return f"py:{script(tmp_path, FILE)}:"


def test_every_operation_is_there_with_its_place(file: str, tmp_path: Path) -> None:
    import torch

    run_here(file + "good", tmp_path / "d", ops="1")
    dump = open_dump(tmp_path / "d")
    outputs = {entry.layer.partition("/")[2]: entry for entry in dump.entries if not entry.is_input}
    kinds = [name.partition("_")[2].partition("_")[2] for name in outputs if name.startswith("op")]
    assert kinds == ["aten.addmm", "aten.mul.Tensor", "aten.add_.Tensor", "aten._softmax"]
    product = next(entry for name, entry in outputs.items() if name.endswith("aten.mul.Tensor"))
    assert product.origin is not None
    assert str(product.origin.source_file).endswith("model_under_test.py")
    assert FILE.splitlines()[(product.origin.source_line or 0) - 1].strip() == "return x * by"
    scaled = next(entry for name, entry in outputs.items() if name.endswith("_scaled"))
    assert torch.equal(torch.tensor(scaled.read()), torch.tensor(product.read()))
    added = next(e for e in dump.entries if e.name.endswith("aten.add_.Tensor-input_0"))
    assert torch.equal(torch.tensor(added.read()), torch.tensor(product.read())), "seen before it was written over"
    stacks = dump.facts["stacks"]
    assert isinstance(stacks, dict)
    frames = [stacks["frames"][k] for k in stacks["of"][product.layer]]
    assert frames[0] == "within model.1"
    assert frames[1].endswith("scaled")
    assert frames[2].endswith("Inner.forward")


def test_nothing_stays_behind(file: str, tmp_path: Path) -> None:
    import sys

    run_here(file + "good", tmp_path / "d", ops="1")
    module = sys.modules["model_under_test"].Inner()
    assert "forward" not in vars(module)
    assert sys.getprofile() is None


def test_the_very_operation_is_found(file: str, tmp_path: Path) -> None:
    for name in ("good", "bad"):
        run_here(file + name, tmp_path / name, ops="1")
    session = compared(tmp_path / "good", tmp_path / "bad")
    culprit = session.outcome(session.rows()).culprit
    assert culprit is not None
    assert culprit.pair.candidate.layer.endswith("aten.mul.Tensor")


def test_an_operation_more_on_one_side_shifts_no_pair(file: str, tmp_path: Path) -> None:
    for name in ("good", "more"):
        run_here(file + name, tmp_path / name, ops="1")
    session = compared(tmp_path / "good", tmp_path / "more")
    assert session.alignment.reference_orphans == ()
    assert {e.layer.rpartition("_")[2] for e in session.alignment.candidate_orphans} == {"aten.clone", "aten.abs"}
    assert all(row.diff is not None and row.diff.max_abs == 0 for row in session.rows())


def test_eager_and_sdpa_meet_again_after_attention(tiny: Make, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    for kind in ("eager", "sdpa"):
        run_here(f"hf:{tiny('llama')}", tmp_path / kind, ops="layers.0.self_attn", attn_implementation=kind)
    session = compared(tmp_path / "eager", tmp_path / "sdpa")
    rows = list(session.rows())
    assert {row.verdict.name for row in rows} == {"agrees"}
    assert session.alignment.coverage > 0.9
    last = rows[-1].pair
    assert (last.reference.layer, last.candidate.layer) != ("", "")
    assert last.reference.layer.rpartition("_")[2] == last.candidate.layer.rpartition("_")[2] == "view"
    alone = {entry.layer for entry in session.alignment.candidate_orphans}
    assert any("scaled_dot_product" in layer for layer in alone)
    functions = {e.layer.partition("/")[2] for e in open_dump(tmp_path / "eager").entries if "/fn_" in e.layer}
    assert {name.split("_", 2)[2] for name in functions} >= {"apply_rotary_pos_emb", "eager_attention_forward"}


def test_a_layer_that_is_not_there_is_refused_with_those_near(file: str, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"model\.2: there is no such layer; near it: model"):
        run_here(file + "good", tmp_path / "d", ops="model.2")
