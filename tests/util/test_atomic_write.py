"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

import pytest

from tensordiff.errors import WriteError
from tensordiff.util.atomic_write import replace_file, write_file


def fail(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_text_and_bytes_replace_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")
    write_file(path, "new …\n")
    assert path.read_bytes() == "new …\n".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_a_lone_surrogate_is_spelled_out(tmp_path: Path) -> None:
    write_file(tmp_path / "file", "a\udc80b")
    assert (tmp_path / "file").read_text() == r"a\udc80b"


def test_folders_are_made_only_where_asked(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    with pytest.raises(WriteError, match=r"file: cannot be written \(no such file or directory\)"):
        write_file(path, "")
    write_file(path, "text", make_folders=True)
    assert path.read_text() == "text"


@pytest.mark.parametrize(("owner", "call"), [(os, "fsync"), (Path, "replace")], ids=["fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    owner: object, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(owner, call, fail)
    with pytest.raises(WriteError, match="no space left on device"):
        write_file(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_target_that_is_a_link_stays_one_and_permissions_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_file(link, "new")
    assert link.is_symlink() and real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_a_link_under_the_temporary_name_is_neither_followed_nor_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, planted = tmp_path / "victim", tmp_path / ".file.0"
    victim.write_text("mine")
    planted.symlink_to(victim)
    monkeypatch.setattr(secrets, "token_hex", lambda _: "0")
    with pytest.raises(WriteError, match="file exists"):
        write_file(tmp_path / "file", "theirs")
    assert victim.read_text() == "mine" and planted.is_symlink()


def test_a_temporary_file_may_have_a_name_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "partial").write_text("somebody else writes")
    with pytest.raises(FileExistsError):
        replace_file(tmp_path / "file", b"new", partial=tmp_path / "partial")
    assert [path.name for path in tmp_path.iterdir()] == ["partial"]
