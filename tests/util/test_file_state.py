"""Whether files are as they were: by content where they are small, by what nobody can set back where they are large."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tensordiff.util import file_state as module
from tensordiff.util.file_state import ABSENT, TooManyFiles, file_state, tree_state, written_since

LARGE = 3 << 20


def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if everything had been written long ago."""
    monkeypatch.setattr(module, "_JUST_NOW_NS", 0)


def test_a_small_file_is_its_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("same")
    shutil.copy(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").write_text("else")
    os.utime(tmp_path / "c", ns=(0, (tmp_path / "a").stat().st_mtime_ns))
    assert file_state(tmp_path / "a") == file_state(tmp_path / "b") != file_state(tmp_path / "c")
    assert file_state(tmp_path / "nothing") == ABSENT


def test_a_small_file_is_read_again_when_it_was_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settled(monkeypatch)
    path = tmp_path / "a"
    path.write_text("one")
    before, times = file_state(path), path.stat()
    path.write_text("two")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file_state(path) != before


def test_a_large_file_with_the_same_size_and_date_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settled(monkeypatch)
    path = tmp_path / "a"
    path.write_bytes(bytes(LARGE))
    before, times = file_state(path), path.stat()
    assert file_state(path) == before
    with path.open("r+b") as file:
        file.write(b"x")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file_state(path) != before
    shutil.copy2(path, tmp_path / "b")
    assert file_state(tmp_path / "b") != file_state(path)


def test_a_large_file_that_was_written_just_now_is_equal_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_JUST_NOW_NS", 10**18)
    (tmp_path / "a").write_bytes(bytes(LARGE))
    assert file_state(tmp_path / "a") != file_state(tmp_path / "a")


def test_a_folder_is_all_that_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/a").write_text("1")
    before = tree_state(tmp_path)
    (tmp_path / "deep/__pycache__").mkdir()
    (tmp_path / "deep/__pycache__/a.pyc").write_text("compiled")
    assert tree_state(tmp_path) == before
    (tmp_path / "deep/b").symlink_to("nowhere")
    with_link = tree_state(tmp_path)
    assert with_link != before
    (tmp_path / "deep/nowhere").write_text("now it is somewhere")
    assert tree_state(tmp_path) != with_link
    assert tree_state(tmp_path, without=tmp_path / "deep") == tree_state(tmp_path / "deep", without=tmp_path / "deep")


def test_links_in_a_circle_and_pipes_are_no_trap(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(".")
    os.mkfifo(tmp_path / "pipe")
    assert tree_state(tmp_path) == tree_state(tmp_path)


def test_a_folder_of_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_FILES", 2)
    for name in "abc":
        (tmp_path / name).touch()
    with pytest.raises(TooManyFiles, match="holds more than 2 files"):
        tree_state(tmp_path)


def test_what_is_beyond_the_budget_is_known_as_large_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settled(monkeypatch)
    monkeypatch.setattr(module, "_MOST_BYTES_READ", 1)
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("1")
    before = tree_state(tmp_path)
    assert tree_state(tmp_path) == before
    shutil.copy(tmp_path / "b", tmp_path / "c")
    (tmp_path / "c").replace(tmp_path / "b")
    assert tree_state(tmp_path) != before


def test_written_since(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch()
    os.utime(path, ns=(0, 0))
    changed = path.stat().st_ctime_ns
    assert written_since(str(path), changed - 10**9)
    assert not written_since(str(path), changed + 10**9)
    assert written_since(str(tmp_path / "gone"), 0)
