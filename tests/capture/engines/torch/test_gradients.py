"""Gradients: what the backward of every module is given and gives, and which backward is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensordiff
from tensordiff.capture.job import parse_source, refuse_settings
from tensordiff.capture.settings import Injection, Settings
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError
from tests.capture.models import Make, run_here, script

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn

NET = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.relu()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (ctx.saved_tensors[0] > 0) * 0.9

class Act(nn.Module):
    is_wrong = False

    def forward(self, x):
        return Scaled.apply(x) if self.is_wrong else x.relu()

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.act, self.down = nn.LayerNorm(16), nn.Linear(16, 32), Act(), nn.Linear(32, 16)
        self.between = lambda x: x

    def forward(self, x):
        return x + self.down(self.between(self.act(self.up(self.norm(x)))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, 20)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.run = lambda block, x: block(x)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(x)

def good():
    torch.manual_seed(0)
    return Net(), (torch.arange(12).reshape(2, 6),)

def wrong_backward():
    net, args = good()
    net.blocks[2].act.is_wrong = True
    return net, args

def wrong_between():
    net, args = good()
    net.blocks[2].between = lambda x: x + 0.5 * (x - x.detach())
    return net, args

def wrong_forward():
    net, args = good()
    net.blocks[2].between = lambda x: 1.1 * x
    return net, args

def reentrant():
    net, args = good()
    net.run = lambda block, x: checkpoint(block, x, use_reentrant=True)
    return net, args

def not_reentrant():
    net, args = good()
    net.run = lambda block, x: checkpoint(block, x, use_reentrant=False)
    return net, args

def frozen():
    net, args = good()
    net.requires_grad_(False)
    return net, args

def raises():
    net, args = good()
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("no such kernel")
    net.blocks[1].between = Fails.apply
    return net, args

def with_loss():
    return *good(), {}, lambda logits: logits.pow(2).mean()

def with_strange_loss():
    return *good(), {}, lambda logits: logits
"""


@pytest.fixture
def net(tmp_path: Path) -> str:
    return f"py:{script(tmp_path, NET)}:"


def gradients(source: str, path: Path) -> Path:
    return run_here(source, path, gradients=True).path


def names(path: Path) -> list[str]:
    return [entry.name for entry in open_dump(path).entries if entry.is_gradient]


def culprit(net: str, which: str, folder: Path) -> tuple[str, str]:
    sides = [gradients(net + name, folder / name) for name in ("good", which)]
    found = tensordiff.compare(*sides)
    assert found.verdict == "diverges" and found.culprit is not None
    return found.culprit.name, found.culprit.why


def test_a_backward_that_is_wrong_is_named(net: str, tmp_path: Path) -> None:
    name, why = culprit(net, "wrong_backward", tmp_path)
    assert name == "backward.blocks.2.act output_grad_input_0"
    assert "its incoming gradient (0.0e+00) and its forward (0.0e+00) agree: its backward is wrong" in why


def test_a_backward_between_modules_is_the_block_s(net: str, tmp_path: Path) -> None:
    name, why = culprit(net, "wrong_between", tmp_path)
    assert name == "backward.blocks.2 output_grad_input_0"
    assert "its parts are right by themselves" in why and "first seen in what act was given" in why


def test_a_wrong_forward_is_still_the_forward_s(net: str, tmp_path: Path) -> None:
    name, _ = culprit(net, "wrong_forward", tmp_path)
    assert name == "blocks.2"
    found = tensordiff.compare(tmp_path / "good", tmp_path / "wrong_forward")
    wrong = [row for row in found.rows if row.name.startswith("backward.") and row.verdict != "agrees"]
    assert wrong and all(row.verdict == "drifts" for row in wrong)
    assert any("because its forward already differs" in row.why for row in wrong)


@pytest.mark.parametrize("which", ["reentrant", "not_reentrant"])
def test_what_a_checkpoint_computes_again_is_no_second_call(which: str, net: str, tmp_path: Path) -> None:
    plain, again = gradients(net + "good", tmp_path / "good"), gradients(net + which, tmp_path / which)
    assert sorted(names(plain)) == sorted(names(again))
    assert tensordiff.compare(plain, again).verdict == "agrees"


@pytest.mark.parametrize(
    ("which", "sentence"),
    [
        ("frozen", r"has no gradient: all its parameters are frozen; call model\.requires_grad_\(True\)"),
        (
            "raises",
            r"the backward raised ValueError after backward\.model\.blocks\.1\.down-\S+: no such kernel; the forw",
        ),
        (
            "with_strange_loss",
            r"the loss function gave a tensor of shape \[2, 6, 20\]; it must return a tensor of one el",
        ),
    ],
)
def test_a_backward_that_fails_is_one_sentence(which: str, sentence: str, net: str, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=sentence):
        gradients(net + which, tmp_path / "d")
    assert len(open_dump(tmp_path / "d").entries) > 10  # the forward lies there


def test_the_loss_may_be_the_function_s(net: str, tmp_path: Path) -> None:
    own, usual = gradients(net + "with_loss", tmp_path / "own"), gradients(net + "good", tmp_path / "usual")
    first = {entry.name: entry.read() for entry in open_dump(own).entries}
    assert np.allclose(
        first["backward.model-input_grad_output"], 2 * first["model-output"] / first["model-output"].size
    )
    assert open_dump(own).facts["loss"] == "the function's own loss"
    assert str(open_dump(usual).facts["loss"]).startswith("the sum of output, weighted")


def test_gradients_nest_and_are_those_of_autograd(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Identity(), nn.Linear(4, 2, bias=False))
    x = torch.ones(5, 3, requires_grad=True)
    with tensordiff.capture(model, tmp_path / "d", gradients=True) as capturing:
        model(x).pow(2).sum().backward()
    assert names(tmp_path / "d") == [
        "backward.model-input_grad_output", "backward.model.2-input_grad_output", "backward.model.2-output_grad_weight",
        "backward.model.2-output_grad_input_0", "backward.model.1-input_grad_output",
        "backward.model.1-output_grad_input_0", "backward.model.0-input_grad_output",
        "backward.model.0-output_grad_bias", "backward.model.0-output_grad_weight",
        "backward.model.0-output_grad_input_0", "backward.model-output_grad_input_0",
    ]  # fmt: skip
    values = {entry.name: entry.read() for entry in open_dump(tmp_path / "d").entries}
    assert np.array_equal(values["backward.model-output_grad_input_0"], x.grad)
    assert np.array_equal(values["backward.model.2-output_grad_weight"], model[2].weight.grad)
    assert capturing.notes == []
    assert not any(parameter._backward_hooks for parameter in model.parameters())


class Shared(nn.Module):  # type: ignore[misc]
    """Calls a part twice, changes an output in place, leaves a part without gradients and one unused."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.relu, self.still, self.unused = (
            nn.Linear(4, 4),
            nn.ReLU(inplace=True),
            nn.Linear(4, 4),
            nn.Linear(2, 2),
        )
        self.still.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            shift = self.part(x)
        y = self.part(self.relu(self.part(x) + shift))
        y += self.still(x)
        return y


def test_calls_in_place_changes_and_parts_without_gradients(tmp_path: Path) -> None:
    model = Shared()
    with tensordiff.capture(model, tmp_path / "d", gradients=True) as capturing:
        model(torch.randn(3, 4)).sum().backward()
    found = names(tmp_path / "d")
    assert "backward.model.part(2)-input_grad_output" in found and "backward.model.part(3)-output_grad_input_0" in found
    assert "backward.model.part-input_grad_output" not in found  # it ran without a graph
    assert found.count("backward.model.part-output_grad_weight") == 1
    assert "backward.model.relu-input_grad_output" in found
    values = {entry.name: entry.read() for entry in open_dump(tmp_path / "d").entries}
    assert np.array_equal(values["backward.model.part-output_grad_weight"], model.part.weight.grad)
    assert "2 parameters are frozen (requires_grad=False) and have no gradient" in capturing.notes
    assert any(
        "2 parameters have no gradient, the loss not depending on them: model.unused" in n for n in capturing.notes
    )


def test_a_second_backward_and_none_at_all(tmp_path: Path) -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    with tensordiff.capture(model, tmp_path / "none", gradients=True) as capturing:
        model(x)
    assert capturing.notes == ["no gradient was seen: call loss.backward() within the block"]
    with tensordiff.capture(model, tmp_path / "two", gradients=True) as capturing:
        loss = model(x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert capturing.notes == ["3 gradients of a second backward of the same forward are not written"]


@pytest.mark.parametrize("kind", ["max:m", "onnx:m.onnx", "vllm:m", "mlx:m", "llamacpp:m.gguf"])
def test_engines_that_only_run_forward_refuse_it_before_anything_runs(kind: str) -> None:
    source = parse_source(kind)
    assert source is not None
    with pytest.raises(
        CaptureError, match=r"--gradients is not for .* sources, which run only forward; hf: and py: sour"
    ):
        refuse_settings(source, Settings(gradients=True))


@pytest.mark.parametrize("more", [{"ops": "a"}, {"steps": 2}, {"inject": Injection("d")}])
def test_gradients_are_of_one_plain_run(more: dict[str, Any]) -> None:
    with pytest.raises(CaptureError, match=r"--gradients and --.*: gradients are those of one plain run"):
        Settings(gradients=True, **more)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_two_kernels_of_attention_agree_backward_too(name: str, tiny: Make, tmp_path: Path) -> None:
    """The gradient of the bias of keys is zero but for rounding, and differs on the two sides."""
    sides = []
    for kernel in ("eager", "sdpa"):
        settings = Settings(gradients=True, input_ids=tuple(range(1, 25)), attn_implementation=kernel, device="cpu")
        sides.append(run_here(f"hf:{tiny(name)}", tmp_path / kernel, settings).path)
    found = tensordiff.compare(*sides)
    assert found.verdict in ("agrees", "drifts")
    assert sum(row.name.startswith("backward.") for row in found.rows) > 40
