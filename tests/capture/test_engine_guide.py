"""The engine of docs/engines.md, added to a copy of tensordiff as the guide says: one folder and one line."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

import tensordiff
from tensordiff.dump import open_dump
from tests import processes

PACKAGE = Path(tensordiff.__file__).parent
GUIDE = PACKAGE.parent / "docs" / "engines.md"
MODEL = """
import numpy as np

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)

def double(x):
    return x * 2

def shift(x):
    return x + {shift}

def halve(x):
    return x / 2

LAYERS = {{"double": double, "shift": shift, "halve": halve}}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tensordiff that has the guide's engine."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE, folder / "tensordiff", ignore=shutil.ignore_patterns("__pycache__"))
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    line = next(block for block in blocks if block.startswith('    "numpy": Engine('))
    code = next(block for block in blocks if block.startswith("# tensordiff/capture/engines/"))
    table = folder / "tensordiff/capture/engines/__init__.py"
    start = "ENGINES: dict[str, Engine] = {\n"
    assert start in table.read_text("utf-8")
    table.write_text(table.read_text("utf-8").replace(start, start + line), "utf-8")
    module = folder / code.partition("\n")[0].removeprefix("# ")
    module.parent.mkdir()
    (module.parent / "__init__.py").touch()
    module.write_text(code, "utf-8")
    return folder


def call(site: Path, *arguments: str | Path) -> tuple[int, str, str]:
    """Run the copy's command; its status, stdout and stderr."""
    command = [sys.executable, "-m", "tensordiff", *map(str, arguments)]
    ran = processes.run(command, env=os.environ | {"PYTHONPATH": str(site)}, cwd=site)
    return ran.returncode, ran.stdout, ran.stderr


def model(folder: Path, name: str, shift: str) -> str:
    (folder / f"{name}.py").write_text(MODEL.format(shift=shift), "utf-8")
    return f"numpy:{folder / name}.py"


def test_the_guides_engine_captures_injects_and_replays(site: Path, tmp_path: Path) -> None:
    reference, candidate = model(tmp_path, "good", "1"), model(tmp_path, "bad", "1.5")
    assert call(site, "capture", reference, "-o", tmp_path / "ref")[0] == 0
    assert call(site, "capture", candidate, "-o", tmp_path / "cand")[0] == 0
    status, _, said = call(site, "capture", candidate, "-o", tmp_path / "inj", "--inject", tmp_path / "ref")
    assert (status, "4 of 4 layers were given the reference's inputs" in said) == (0, True)

    dump = open_dump(tmp_path / "inj")
    names = [entry.name for entry in open_dump(tmp_path / "ref").entries]
    assert [entry.name for entry in dump.entries] == names
    assert names == ["model-input_0", *(f"model.{layer}-{port}" for layer in ("double", "shift", "halve")
                                        for port in ("input_0", "output")), "model-output"]  # fmt: skip
    injection = json.loads((tmp_path / "inj" / "manifest.json").read_text("utf-8"))["injection"]
    assert injection["passes"] == 2
    assert injection["layers"]["model.halve"] == {
        "injected": {"input_0": "model.halve-input_0"}, "kept": {}, "isolated": True,
    }  # fmt: skip

    sides = tmp_path / "ref", tmp_path / "cand", "--injected", tmp_path / "inj"
    status, out, _ = call(site, "compare", *sides, "--json")
    said_of = {pair["name"]: pair["verdict"] for pair in json.loads(out)["pairs"] if pair["port"] == "output"}
    assert (status, json.loads(out)["culprit"]["name"]) == (1, "shift")
    assert said_of["halve"] == "drifts"
    status, _, _ = call(site, "replay", tmp_path / "ref", "halve", "--source", candidate)
    assert status == 0


def test_the_table_refuses_what_the_engine_cannot_do(site: Path, tmp_path: Path) -> None:
    source = model(tmp_path, "good", "1")
    status, _, said = call(site, "capture", source, "-o", tmp_path / "d", "--dtype", "float16")
    assert (status, "--dtype is not for numpy: sources; the file decides" in said) == (2, True)
    status, _, said = call(site, "capture", "nothing", "-o", tmp_path / "d")
    assert (status, "numpy:FILE.py" in said) == (2, True)
