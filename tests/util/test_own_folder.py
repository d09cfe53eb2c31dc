"""Files that are believed only where nobody else can have written them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tensordiff.util.own_folder import OwnFolder
from tests.mounts import on_small_disk, read_only
from tests.processes import run


@pytest.fixture
def folder(tmp_path: Path) -> OwnFolder:
    made = OwnFolder(tmp_path / "cache" / "own")
    assert made.write("a", b"1")
    return made


def test_what_was_written_is_read(folder: OwnFolder) -> None:
    assert folder.read("a") == b"1"
    assert folder.write("a", b"2")
    assert folder.read("a") == b"2"
    assert [path.name for path in folder.path.iterdir()] == ["a"]
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_what_is_not_there(folder: OwnFolder, tmp_path: Path) -> None:
    assert folder.read("b") is None
    assert OwnFolder(tmp_path / "nowhere").read("a") is None


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o720, 0o1777])
def test_a_folder_that_others_may_write_to(folder: OwnFolder, mode: int) -> None:
    folder.path.chmod(mode)
    assert folder.read("a") is None
    assert not folder.write("a", b"2")
    assert (folder.path / "a").read_bytes() == b"1"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else(folder: OwnFolder) -> None:
    os.chown(folder.path, 12345, 12345)
    assert folder.read("a") is None
    assert not folder.write("a", b"2")


def test_links_are_not_followed(folder: OwnFolder, tmp_path: Path) -> None:
    (folder.path / "b").symlink_to(folder.path / "a")
    assert folder.read("b") is None
    link = tmp_path / "link"
    link.symlink_to(folder.path)
    assert OwnFolder(link).read("a") is None
    assert not OwnFolder(link).write("a", b"2")


def test_things_that_are_no_files(folder: OwnFolder) -> None:
    os.mkfifo(folder.path / "pipe")
    (folder.path / "folder").mkdir()
    assert folder.read("pipe") is None
    assert folder.read("folder") is None
    assert not folder.write("folder", b"1")
    assert sorted(path.name for path in folder.path.iterdir()) == ["a", "folder", "pipe"]


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        assert OwnFolder(path).read("a") is None
        assert not OwnFolder(path).write("a", b"1")


_SCRIPT = """
import sys
from pathlib import Path
from tensordiff.util.own_folder import OwnFolder
folder = OwnFolder(Path(sys.argv[1]))
print(folder.write("a", bytes(200_000)), folder.read("a"), sorted(path.name for path in Path(sys.argv[2]).rglob("*")))
"""
_WRITE = (sys.executable, "-c", _SCRIPT)


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    done = run(on_small_disk([*_WRITE, tmp_path / "own", tmp_path], tmp_path, "64k"), check=True)
    assert done.stdout == "False None ['own']\n"


def test_a_disk_that_cannot_be_written(tmp_path: Path) -> None:
    done = run(read_only([*_WRITE, tmp_path / "own", tmp_path], tmp_path), check=True)
    assert done.stdout == "False None []\n"
