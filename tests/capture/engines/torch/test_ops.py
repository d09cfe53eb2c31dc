"""Inside a layer: operations and functions, and laying two sides' sequences side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensordiff.capture.settings import Injection
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError
from tests.capture.models import Make, compared, run_here, script

pytest.importorskip("torch")

FILE = """
import tensordiff
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

class Instead(Inner):
    def forward(self, x):
        y = scaled(self.part(x), self.by)
        y += 1
        return torch.log_softmax(y, -1)

def instead():
    return made(Instead())

def shifted():
    model, args = made(Inner())
    return model, (args[0] + 1,)

class Again(nn.Module):
    def forward(self, x, left=2):
        return self(x * 2, left - 1) if left else tensordiff.tap("last", x + 1)

def again():
    return made(Again())

def idle():
    model, args = made(Inner())
    model.spare = nn.Linear(3, 3)
    model.forward = lambda x: model[1](model[0](x))
    return model, args
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


QUANTIZED = """
import torch
from torch import nn
from torch.utils._pytree import tree_map

class Codes(torch.Tensor):
    # a weight that is several tensors in one, as torchao has it

    @staticmethod
    def __new__(cls, codes):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes):
        self.codes = codes

    def __tensor_flatten__(self):
        return ["codes"], None

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(args[0].codes)
        plain, named = tree_map(lambda x: x.codes.float() if isinstance(x, cls) else x, (args, kwargs or {}))
        return function(*plain, **named)

def model():
    line = nn.Linear(4, 4, bias=False)
    line.weight = nn.Parameter(Codes(torch.arange(16, dtype=torch.int8).reshape(4, 4)), requires_grad=False)
    return nn.Sequential(line, nn.ReLU()), (torch.ones(1, 4),)
"""


def test_a_weight_that_is_several_tensors_in_one_does_not_flow(tmp_path: Path) -> None:
    run_here(f"py:{script(tmp_path, QUANTIZED)}:model", tmp_path / "d", ops="0")
    entries = open_dump(tmp_path / "d").entries
    assert [6, 22, 38, 54] in [entry.read().reshape(-1).tolist() for entry in entries if not entry.is_input]


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
    assert session.alignment.coverage.candidate.share > 0.9  # one operation in the place of many
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


def test_a_module_that_calls_itself_is_watched_from_its_outermost_call(file: str, tmp_path: Path) -> None:
    run_here(file + "again", tmp_path / "d", ops="1")
    outputs = [entry for entry in open_dump(tmp_path / "d").entries if not entry.is_input and "/op" in entry.layer]
    kinds = [entry.layer.partition("_aten.")[2] for entry in outputs]
    assert kinds == ["mul.Tensor", "mul.Tensor", "add.Tensor"]
    assert outputs[-1].read().tolist() == [[5.0] * 3] * 2


def test_a_persons_own_points_are_there_whatever_captures(file: str, tmp_path: Path) -> None:
    run_here(file + "again", tmp_path / "plain")
    run_here(file + "again", tmp_path / "ops", ops="1")
    injection = Injection(str(tmp_path / "plain"))
    run_here(file + "again", tmp_path / "injected", inject=injection)
    for name in ("plain", "ops", "injected"):
        (point,) = [entry for entry in open_dump(tmp_path / name).entries if entry.layer.endswith("/last")]
        assert point.read().tolist() == [[5.0] * 3] * 2


def test_operations_can_be_seen_on_the_references_inputs(file: str, tmp_path: Path) -> None:
    """With right inputs, the first operation that differs is the wrong one, whatever came before the layer."""
    run_here(file + "good", tmp_path / "good")
    run_here(file + "good", tmp_path / "ops", ops="1", no_inputs=True)
    run_here(file + "shifted", tmp_path / "own", ops="1")
    injection = Injection(str(tmp_path / "good"))
    run_here(file + "shifted", tmp_path / "given", ops="1", inject=injection, no_inputs=True)
    mine, given = open_dump(tmp_path / "ops"), open_dump(tmp_path / "given")
    assert given.facts["notes"] == ["1 of 1 layers were given the reference's inputs"]
    assert not any(entry.is_input for entry in (*mine.entries, *given.entries))
    values = [{entry.name: entry.read().tolist() for entry in dump.entries} for dump in (mine, given)]
    assert values[0] == values[1]
    own = {entry.name: entry.read().tolist() for entry in open_dump(tmp_path / "own").entries}
    assert any(own[name] != value for name, value in values[0].items())
    assert dict(given.facts["injection"])["layers"]["model.1"]["isolated"]  # type: ignore[call-overload]


def test_a_layer_that_does_not_run_leaves_a_dump_that_says_so(file: str, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="did not run"):
        run_here(file + "idle", tmp_path / "d", ops="spare")
    dump = open_dump(tmp_path / "d")
    assert dump.interrupted
    assert "did not run" in str(dump.facts["error"])


def test_an_operation_in_the_place_of_another_is_where_they_part(file: str, tmp_path: Path) -> None:
    run_here(file + "good", tmp_path / "good", ops="1")
    run_here(file + "instead", tmp_path / "instead", ops="1")
    session = compared(tmp_path / "good", tmp_path / "instead")
    outcome = session.outcome(session.rows())
    assert outcome.culprit is not None
    names = outcome.culprit.pair.reference.layer, outcome.culprit.pair.candidate.layer
    assert [name.rpartition(".")[2] for name in names] == ["_softmax", "_log_softmax"]
