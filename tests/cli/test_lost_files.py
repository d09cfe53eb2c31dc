"""Every command, in a process of its own, where a file becomes shorter while it is read: a sentence, and status 2."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests import processes
from tests.cli.command import environment
from tests.making import nudged, numbers, save

TENSORS = {f"layers.{k}.mlp-output": numbers(200, 200, seed=k) for k in range(6)}
CUT = """
import os
from tensordiff.dump.model import Entry
real, cut = Entry.read, []
def read(entry):
    array = real(entry)  # mapped, and not a byte of it read
    path = os.fspath(entry.stored.file.path)
    if path.endswith("cut.safetensors") and not cut:
        cut.append(path)
        os.truncate(path, 8192)
    return array
Entry.read = read
from tensordiff.cli.main import run
run()
"""


def run(*args: object) -> tuple[int, str, str]:
    command = [sys.executable, "-c", CUT, *map(str, args)]
    done = processes.run(command, env=environment())
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("compare", "{r}", "{c}"),
        ("compare", "{r}", "{c}", "--json"),
        ("compare", "{c}", "{r}"),
        ("bisect", "{r}", "{c}", "--auto"),
        ("tolerances", "{r}", "{c}"),
        ("report", "{r}", "{c}", "-o", "{out}.html"),
        ("lint", "{c}"),
        ("lint", "{r}", "{c}"),
        ("inspect", "{c}", "--stats"),
    ],
    ids=" ".join,
)
def test_a_file_that_becomes_shorter(tmp_path: Path, command: tuple[str, ...]) -> None:
    reference, cut = save(tmp_path / "r.safetensors", TENSORS), tmp_path / "cut.safetensors"
    save(cut, {name: nudged(array, 1e-7) for name, array in TENSORS.items()})
    names = {"r": reference, "c": cut, "out": tmp_path / "out"}
    status, out, err = run(*(word.format(**names) for word in command))
    assert status == 2, err
    assert "Traceback" not in err
    assert "cut.safetensors: became shorter while it" in out + err
    if "--json" in command:
        assert json.loads(out)["verdict"] == "unknown"


def test_nothing_is_said_where_nothing_is_cut(tmp_path: Path) -> None:
    reference = save(tmp_path / "r.safetensors", TENSORS)
    status, _, err = run("compare", reference, reference)
    assert (status, err) == (0, "")
