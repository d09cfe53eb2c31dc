"""Modules that torch compiled or exported, through ``py:``: compared with the eager one, and a bug in them named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.capture.models import run_here, script

torch = pytest.importorskip("torch")

NET = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.act, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList(Block() for _ in range(3)), nn.Linear(32, 48)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

def eager():
    torch.manual_seed(0)
    return Net().eval(), (torch.linspace(-1, 1, 7 * 32).sin().reshape(7, 32),)

def wrong():
    net, args = eager()
    with torch.no_grad():
        net.layers[1].up.weight.mul_(1.3)
    return net, args

def compiled(make=eager):
    net, args = make()
    return torch.compile(net, backend="eager"), args

def compiled_wrong():
    return compiled(wrong)

def exported():
    net, args = eager()
    return torch.export.export(net, args).module(), args

def unflattened(make=eager):
    net, args = make()
    return torch.export.unflatten(torch.export.export(net, args)), args

def unflattened_wrong():
    return unflattened(wrong)
"""


def compared(folder: Path, candidate: str) -> Session:
    source = script(folder, NET)
    sides = (run_here(f"py:{source}:{name}", folder / name).path for name in ("eager", candidate))
    return Session.open(Request(*sides))


@pytest.mark.parametrize("name", ["compiled", "unflattened"])
def test_a_right_one_agrees_in_every_layer(tmp_path: Path, name: str) -> None:
    session = compared(tmp_path, name)
    outcome = session.outcome(session.rows())
    assert (outcome.verdict, outcome.culprit) == ("agrees", None)
    paired = {pair.reference.layer for pair in session.pairs}
    blocks = {f"model.layers.{k}.{part}" for k in range(3) for part in ("norm", "up", "act", "down")}
    assert {"model.head", *blocks} <= paired


@pytest.mark.parametrize("name", ["compiled_wrong", "unflattened_wrong"])
def test_a_bug_in_it_is_named(tmp_path: Path, name: str) -> None:
    session = compared(tmp_path, name)
    found = session.outcome(session.rows()).culprit
    assert found is not None and found.pair.reference.layer == "model.layers.1.up"


def test_one_that_is_a_single_graph_is_not_said_to_agree(tmp_path: Path) -> None:
    """Nothing within it can be seen: one pair of dozens agrees, which says little of the model."""
    session = compared(tmp_path, "exported")
    outcome = session.outcome(session.rows())
    assert (outcome.verdict, outcome.exit_status, outcome.culprit) == ("unknown", 2, None)
    assert "coverage" in outcome.reasons[0]
