"""Files that go, change or may not be read between being listed, opened and read: sentences, and nothing else."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tensordiff.dump.folders import DumpPath
from tensordiff.dump.model import Dump
from tensordiff.dump.readers import readers
from tensordiff.errors import TensordiffError
from tests import processes
from tests.dump.file_damage import ask
from tests.dump.readers.max_samples import max_bytes
from tests.making import numbers, save, save_npy, write

A = numbers(200, 200)


def save_pt(folder: Path) -> None:
    folder.mkdir()
    for name in ("a.pt", "b.pt"):
        torch.save(torch.from_numpy(A), folder / name)


def save_hook(folder: Path) -> None:
    save_pt(folder)
    (folder / "tensor_names.txt").write_text("b\na\n")


def save_max(folder: Path) -> None:
    folder.mkdir()
    for name in ("a.max", "b.max"):
        (folder / name).write_bytes(max_bytes(shape=(200, 200), data=A.tobytes()))


def save_layers(folder: Path) -> None:
    save_max(folder)
    (folder / "layer_metadata.json").write_text("{}")


def save_npz(folder: Path) -> None:
    folder.mkdir()
    for name in "ab":
        np.savez(folder / f"{name}.npz", **{f"{name}1": A, f"{name}2": A})  # type: ignore[arg-type]


FORMATS: dict[str, Callable[[Path], object]] = {
    "tensordiff": lambda folder: write(folder, {"a": A, "b": A}),
    "safetensors": lambda folder: [save(folder / f"{name}.safetensors", {name: A}) for name in "ab"],
    "torch": save_pt,
    "torch-hook": save_hook,
    "max": save_max,
    "verify-layers": save_layers,
    "numpy": lambda folder: save_npy(folder, {"a": A, "b": A}),
    "npz": save_npz,
}


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def grown(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(1 << 17))


CHANGES: dict[str, Callable[[Path], None]] = {
    "gone": Path.unlink,
    "a pipe": pipe,
    "a folder": folder,
    "a link to itself": loop,
    "empty": lambda path: os.truncate(path, 0),
    "one byte": lambda path: os.truncate(path, 1),
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "longer": grown,
}


def opened(at: DumpPath) -> Dump | None:
    try:
        return next((dump for try_open in readers() if (dump := try_open(at)) is not None), None)
    except TensordiffError as error:
        assert str(error).isprintable()
        return None


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("when", ["before it is opened", "before it is read", "after a first read"])
def test_a_file_that_changes(tmp_path: Path, format_: str, change: str, when: str) -> None:
    """After it was listed, whatever becomes of any file of a dump, each entry is its values or a sentence."""
    FORMATS[format_](tmp_path / "whole")
    for name in sorted(path.name for path in (tmp_path / "whole").iterdir()):
        shutil.copytree(tmp_path / "whole", tmp_path / "d")
        at = DumpPath(tmp_path / "d")
        assert at.files
        dump = opened(at) if when != "before it is opened" else None
        if when == "after a first read":
            for entry in dump.entries if dump else ():
                assert entry.read().shape == A.shape
        CHANGES[change](tmp_path / "d" / name)
        dump = opened(at) if when == "before it is opened" else dump
        for entry in dump.entries if dump else ():
            ask(entry)
        shutil.rmtree(tmp_path / "d")


NOBODY = """
import os, sys, tempfile
from pathlib import Path
import numpy as np
from tensordiff.dump import open_dump
from tensordiff.dump.readers import readers
from tensordiff.errors import TensordiffError
tuple(readers())
if os.getuid() == 0:  # who may read everything
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
with tempfile.TemporaryDirectory() as made:
    root = Path(made)
    for step in ("0", "1"):
        (root / step).mkdir()
        np.save(root / step / "a.npy", np.ones(3))
    (root / "0" / "layers").mkdir()
    def say(path):
        try:
            dump = open_dump(path)
            print([(p.file, p.is_unread) for p in dump.problems], dump.unread)
            [entry.read() for entry in dump.entries]
        except TensordiffError as error:
            print(type(error).__name__, error)
    (root / "1").chmod(0)
    say(root)
    (root / "0" / "layers").chmod(0)
    say(root / "0")
    (root / "0" / "a.npy").chmod(0)
    say(root / "0" / "a.npy")
    (root / "0" / "layers").chmod(0o700)
    say(root / "0")
    dump = open_dump(root / "0")
    (root / "0").chmod(0)
    say(root / "0")
    say(root / "0" / "a.npy")
    try:
        dump.entries[0].read()
    except TensordiffError as error:
        print(type(error).__name__, error)
    for path in (root / "0", root / "1"):
        path.chmod(0o700)
"""


def test_folders_and_files_that_may_not_be_read() -> None:
    ran = processes.run([sys.executable, "-c", NOBODY])
    assert (ran.returncode, ran.stderr) == (0, "")
    steps, beside, *rest = ran.stdout.splitlines()
    assert steps.startswith("[('1', True)]")
    assert "cannot be listed (permission denied)" in steps
    assert beside.startswith("[('layers', True)]")
    assert "cannot be listed (permission denied)" in beside
    assert all("permission denied" in line for line in rest if not line.startswith("[]")), rest
    assert len(rest) == 6
