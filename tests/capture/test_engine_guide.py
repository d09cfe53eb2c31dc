"""The engine of docs/engines.md, installed beside tensordiff as the guide says: a package with an entry point."""

from __future__ import annotations

import json
import re
import shutil
import sysconfig
import tomllib
import venv
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
    """The interpreter of an environment that has what this one has, and the guide's package."""
    folder = tmp_path_factory.mktemp("site")
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    here = sysconfig.get_path("purelib")
    (packages / "here.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    blocks = re.findall(r"```\w+\n(# ([\w./]+)\n.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    files = {name: text for text, name in blocks}
    assert sum(text.count("\n") for text in files.values()) < 100
    for name in ("tensordiff_numpy/__init__.py", "tensordiff_numpy/engine.py"):
        (packages / name).parent.mkdir(exist_ok=True)
        (packages / name).write_text(files[name], "utf-8")
    project = tomllib.loads(files["pyproject.toml"])["project"]
    about = packages / "tensordiff_numpy-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in project["entry-points"]["tensordiff.engines"].items()]
    (about / "entry_points.txt").write_text("\n".join(["[tensordiff.engines]", *lines, ""]))
    return folder / "bin" / "python"


def call(site: Path, *arguments: str | Path) -> tuple[int, str, str]:
    """Run the command in the environment; its status, stdout and stderr."""
    ran = processes.run([str(site), "-m", "tensordiff", *map(str, arguments)], cwd=site.parent)
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


def test_the_guides_engine_is_verified_and_searched(site: Path, tmp_path: Path) -> None:
    reference, right, wrong = (model(tmp_path, name, by) for name, by in (("good", "1"), ("same", "1"), ("bad", "1.5")))
    status, out, _ = call(site, "verify", reference, right, "-o", tmp_path / "right")
    assert (status, "The two runs agree in all of" in out) == (0, True), out
    status, out, _ = call(site, "verify", reference, wrong, "-o", tmp_path / "wrong", "--save-layers")
    assert (status, "shift" in out) == (1, True), out
    sides = (tmp_path / "wrong" / "without_injection" / f"{side}_layers" for side in ("reference", "candidate"))
    status, out, _ = call(site, "bisect", *sides, "--rerun")
    assert (status, "first bad: shift\n" in out) == (1, True), out


def test_the_table_refuses_what_the_engine_cannot_do(site: Path, tmp_path: Path) -> None:
    source = model(tmp_path, "good", "1")
    status, _, said = call(site, "capture", source, "-o", tmp_path / "d", "--dtype", "float16")
    assert (status, "--dtype is not for numpy: sources; the file decides" in said) == (2, True)
    status, _, said = call(site, "capture", "nothing", "-o", tmp_path / "d")
    assert (status, "numpy:FILE.py" in said) == (2, True)


def test_an_engine_that_merely_lies_in_the_current_folder_does_not_count(site: Path, tmp_path: Path) -> None:
    packages = next(site.parents[1].glob("lib/python*/site-packages"))
    stranger = tmp_path / "stranger"
    shutil.copytree(packages / "tensordiff_numpy-1.0.dist-info", stranger / "evil-1.0.dist-info")
    (stranger / "evil-1.0.dist-info" / "entry_points.txt").write_text("[tensordiff.engines]\nevil = evil:ENGINE\n")
    (stranger / "evil.py").write_text("raise SystemExit(99)\n")
    ran = processes.run([str(site), "-m", "tensordiff", "capture", "evil:x", "-o", "d"], cwd=stranger)
    assert (ran.returncode, "evil:x: is not a source" in ran.stderr) == (2, True)
