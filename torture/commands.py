"""The commands that are attacked, with dumps and models to run them on, and what each writes."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from torture.samples import safetensors_bytes

COMMAND = (sys.executable, "-m", "tensordiff")
MODEL = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


def net():
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(12))).eval(), (torch.randn(64, 64),)


def bad():
    net_, inputs = net()
    net_[7].act = nn.GELU()
    return net_, inputs
"""


class Command(NamedTuple):
    """One command line. ``OUT`` in a word stands for a folder of the case, all else is relative to the samples."""

    name: str
    words: tuple[str, ...]
    writes: tuple[str, ...] = ()
    """Files that are there whole in the end, or as they were, or not at all."""
    folders: tuple[str, ...] = ()
    """Folders of which parts may be left, such as a capture that is flagged as interrupted."""
    needs_torch: bool = False
    replaces: bool = True
    """Whether it writes over files that are there."""
    edits: bool = False
    """Whether it edits a file that is there, and leaves it as it is where there is nothing to add."""
    statuses: tuple[int, ...] = (0, 1)
    """How it ends when nobody disturbs it, or what it served is over."""
    ends: bool = True
    """Whether it ends by itself."""

    def line(self, out: Path) -> list[str]:
        """The words to run it by."""
        return [*COMMAND, *(word.replace("OUT", str(out)) for word in self.words)]


_SIDES = ("ref.safetensors", "cand.safetensors")
_NET, _BAD = "py:net.py:net", "py:net.py:bad"
COMMANDS = (
    Command("compare", ("compare", *_SIDES)),
    Command("compare json", ("compare", *_SIDES, "--json", "--junit", "OUT/j.xml"), ("j.xml",)),
    Command("report", ("report", *_SIDES, "-o", "OUT/r.html", "-o", "OUT/r.md"), ("r.html", "r.md")),
    Command("report csv", ("report", *_SIDES, "-o", "OUT/r.json", "-o", "OUT/r.csv"), ("r.json", "r.csv")),
    Command("report png", ("report", *_SIDES, "-o", "OUT/r.png", "-o", "OUT/r.txt"), ("r.png", "r.txt")),
    Command("align", ("align", *_SIDES, "-o", "OUT/rules.toml"), ("rules.toml",), edits=True),
    Command("lint", ("lint", *_SIDES)),
    Command("inspect", ("inspect", "ref.safetensors", "--stats")),
    Command("tolerances", ("tolerances", "ref.safetensors", "ref.safetensors", "-o", "OUT/t.toml"), ("t.toml",)),
    Command("bisect", ("bisect", *_SIDES, "--auto", "--log", "OUT/log"), ("log",), replaces=False),
    Command("verify", ("verify", *_SIDES, "-o", "OUT/v"), (), ("v",)),
    Command("verify layers", ("verify", *_SIDES, "-o", "OUT/v", "--save-layers"), (), ("v",)),
    Command("suite", ("verify", "--suite", "suite.toml", "-o", "OUT/v"), (), ("v",)),
    Command("capture", ("capture", _NET, "-o", "OUT/d"), (), ("d",), needs_torch=True),
    Command("compare sources", ("compare", _NET, _NET), needs_torch=True),
    Command("verify sources", ("verify", _NET, _NET, "-o", "OUT/v"), (), ("v",), needs_torch=True),
    Command("bisect rerun", ("bisect", "dump", "dump-bad", "--rerun", "--trust-source"), needs_torch=True),
    Command("capture injected", ("capture", _BAD, "-o", "OUT/d", "--inject", "dump"), (), ("d",), needs_torch=True),
    Command("demo", ("demo",)),
    Command("no command", _SIDES),
    Command("report change", ("report", "a.json", "b.json", "-o", "OUT/r.md"), ("r.md",), statuses=(0, 1, 2)),
    Command("serve", ("serve", *_SIDES, "--port", "0"), ends=False),
    Command("replay", ("replay", "dump", "model.5", "-o", "OUT/b", "--trust-source"), (), ("b",), needs_torch=True),
)  # fmt: skip


def has_torch() -> bool:
    """Whether models can be run here."""
    return find_spec("torch") is not None


def make_samples(folder: Path) -> None:
    """Everything that the commands are run on."""
    rng = np.random.default_rng(3)
    ref = {f"model.layers.{k}.mlp-output": rng.standard_normal((64, 2048)).astype("f4") for k in range(48)}
    cand = {name: array + 1e-8 * array for name, array in ref.items()}
    cand |= {name: 1.5 * array for name, array in list(cand.items())[30:]}
    (folder / "ref.safetensors").write_bytes(safetensors_bytes(ref))
    (folder / "cand.safetensors").write_bytes(safetensors_bytes({name: a.astype("f4") for name, a in cand.items()}))
    for name, side in (("a", "ref"), ("b", "cand")):
        words = [*COMMAND, "report", "ref.safetensors", f"{side}.safetensors", "-o", f"{name}.json"]
        subprocess.run(words, cwd=folder, check=False, capture_output=True)  # noqa: S603 - our own command
    (folder / "net.py").write_text(MODEL)
    table = "[[model]]\nname = '{}'\nreference = 'ref.safetensors'\ncandidate = '{}'\n"
    for name in ("net", "bad") if has_torch() else ():
        path = folder / ("dump" if name == "net" else "dump-bad")
        words = [*COMMAND, "capture", f"py:{folder}/net.py:{name}", "-o", str(path)]
        subprocess.run(words, check=True, capture_output=True)  # noqa: S603 - our own command
    (folder / "suite.toml").write_text(table.format("a", _SIDES[1]) + table.format("b", _SIDES[0]))
