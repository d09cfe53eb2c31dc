"""``repro.py`` is code of ours, whatever a model calls its layers and classes."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensordiff.capture.engines.torch.replay.repro_script import repro_script
from tests import processes
from tests.capture.engines.torch.test_replay import replay
from tests.capture.models import run_here, script

HOSTILE = [
    '"""', "'''", "'", '"', "a'b\"c", "a\nowned()\n#", "a\r\nowned()", "\\", "a\\", "\\'\nowned()\n'", "{x}", "{",
    "}{0}%s", "%(x)s", "\u2028owned()", "\u2029", "\x0bowned()", "\x0cowned()", "\x85owned()", "\ud800", "\udcff",
    "\u202eab",
    "\x00", "\x1b]0;owned\x07", "# (names)\n", '"""\nowned()\n"""', "f'{owned()}'", "\N{NULL}owned()", "owned()", "-o",
    "語",
]  # fmt: skip
CALLS = {
    "Path", "double", "reshape", "norm", "item", "abs", "max", "numel", "join", "isprintable", "ascii", "load",
    "module", "no_grad", "layer", "error", "items", "dumps", "print", "shown", "main", "cpu", "index", "to",
    "move_to_device_pass",
}  # fmt: skip
"""All that the script calls."""


def made(name: str) -> ast.Module:
    """The script for a layer, a class and a version of that name."""
    text = repro_script(layer=name, module_class=name, torch_version=name, device=name)
    assert text.isascii()
    return ast.parse(text)


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)


def check(name: str) -> None:
    tree, plain = made(name), made("plain")
    assert {called(node) for node in ast.walk(tree) if isinstance(node, ast.Call)} == CALLS
    values = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    assert [ast.literal_eval(value) for value in values[:4]] == [name] * 4
    for value in values[:4]:
        assert isinstance(value, ast.Constant)
        value.value = "plain"
    assert ast.dump(tree) == ast.dump(plain)


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_name_is_a_literal_and_nothing_else_of_the_script_depends_on_it(name: str) -> None:
    check(name)


@given(st.text(st.characters()))
def test_so_is_any_other_name(name: str) -> None:
    check(name)


NET = """
import torch
from torch import nn

class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, x):
        return self.line(x)

class Net(nn.Module):
    def __init__(self, names):
        super().__init__()
        for name in names:
            self.add_module(name, Inner())

    def forward(self, x):
        for layer in self.children():
            x = layer(x)
        return x

def net():
    torch.manual_seed(0)
    Inner.__name__ = {names!r}[0].encode("utf-8", "ignore").decode()  # a class has no lone surrogates
    return Net({names!r}).eval(), (torch.randn(2, 4),)
"""


def test_a_bundle_of_such_a_layer_runs_and_prints_nothing_but_text(tmp_path: Path) -> None:
    name = 'a"""\nowned()\n"""\x1b]0;owned\x07\ud800{x}\u2028'
    source = f"py:{script(tmp_path, NET.format(names=[name]))}:net"
    run_here(source, tmp_path / "d")
    told = replay(source, tmp_path / "d", f"model.{name}", tmp_path / "r", tmp_path / "bundle")
    assert any("runs with torch alone; it says the same" in str(event) for event in told)
    repro = tmp_path / "bundle" / "repro.py"
    said = processes.run([sys.executable, "-W", "ignore", repro], check=True).stdout
    assert len(said.splitlines()) == 2
    assert all(line.isprintable() for line in said.split("\n"))
    assert said.startswith(f"model.{ascii(name)[1:-1]}, a ")
