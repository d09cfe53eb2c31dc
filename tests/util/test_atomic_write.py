"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

import pytest

from tensordiff.errors import WriteError
from tensordiff.util.atomic_write import follow_link, is_temporary_name, replace_file, replacing, write_file

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
NOBODY = 65534


def fail(*_: object, **__: object) -> None:
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


@pytest.mark.parametrize(("owner", "call"), [(os, "fsync"), (os, "replace")], ids=["fsync", "replace"])
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
    victim, planted = tmp_path / "victim", tmp_path / ".tensordiff-0"
    victim.write_text("mine")
    planted.symlink_to(victim)
    monkeypatch.setattr(secrets, "token_hex", lambda _: "0")
    with pytest.raises(WriteError, match="file exists"):
        write_file(tmp_path / "file", "theirs")
    assert victim.read_text() == "mine" and planted.is_symlink()


def test_the_temporary_file_s_name_is_random_short_and_known_as_one(tmp_path: Path) -> None:
    target, seen = tmp_path / ("n" * 255), set()
    for _ in range(3):
        with replacing(target) as file:
            file.write(b"new")
            (name,) = (path.name for path in tmp_path.iterdir() if path != target)
            assert is_temporary_name(name)
            seen.add(name)
    assert len(seen) == 3
    assert target.read_bytes() == b"new"
    assert not is_temporary_name(".tensordiff-cache") and not is_temporary_name(".file.0123456789abcdef")


@needs_root
def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    victim, planted = tmp_path / "victim", tmp_path / "report.html"
    victim.write_text("mine")
    planted.symlink_to(victim)
    os.lchown(planted, NOBODY, NOBODY)
    with pytest.raises(WriteError, match=r"report\.html: is a link that another user made, and is not followed"):
        write_file(planted, "theirs")
    own = tmp_path / "own"
    own.symlink_to("report.html")  # and not by way of one's own either
    with pytest.raises(WriteError, match="own: is a link that another user made"):
        write_file(own, "theirs")
    with pytest.raises(WriteError, match="another user made"):
        follow_link(planted)
    assert victim.read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_link_to_itself_and_one_to_nothing(tmp_path: Path) -> None:
    loop, new = tmp_path / "loop", tmp_path / "new"
    loop.symlink_to("loop")
    with pytest.raises(WriteError, match="leads nowhere but to links"):
        write_file(loop, "")
    new.symlink_to("made")
    write_file(new, "text")
    assert new.is_symlink() and (tmp_path / "made").read_text() == "text"


def test_replacing_follows_no_link_at_all(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(WriteError, match="link: is a link, and is not replaced by a file"):
        replace_file(tmp_path / "link", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_a_link_that_is_exchanged_while_it_is_read_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, read = tmp_path / "link", Path.readlink
    link.symlink_to("mine")

    def exchanged(path: Path) -> Path:
        link.unlink()
        link.symlink_to("theirs")
        return read(path)

    monkeypatch.setattr(Path, "readlink", exchanged)
    with pytest.raises(WriteError, match="changes while it is read"):
        write_file(link, "text")
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    with pytest.raises(WriteError, match="pipe: is a device, a pipe or a socket, and is not replaced by a file"):
        write_file(pipe, "text")
    with pytest.raises(WriteError, match=r"folder: cannot be written \(is a directory\)"):
        write_file(folder, "text")
    with pytest.raises(WriteError, match="is a device"):
        write_file("/dev/null", "text")
    assert stat.S_ISFIFO(pipe.stat().st_mode) and stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604, 0o664, 0o400, 0o4755])
def test_a_temporary_file_is_never_wider_than_what_it_replaces(tmp_path: Path, mode: int) -> None:
    path, modes = tmp_path / "file", []
    path.write_text("old")
    path.chmod(mode)
    with replacing(path) as file:
        file.write(b"new")
        modes.append(stat.S_IMODE(os.fstat(file.fileno()).st_mode))
    everyone = mode & 0o007
    assert modes[0] & ~(mode & 0o700 | everyone << 3 | everyone) == 0
    assert stat.S_IMODE(path.stat().st_mode) == mode & 0o777


def test_a_new_file_has_what_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "file", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


@needs_root
def test_somebody_else_s_file_gives_no_permissions_away(tmp_path: Path) -> None:
    open_to_all, closed = tmp_path / "open", tmp_path / "closed"
    for path, mode in ((open_to_all, 0o666), (closed, 0o600)):
        path.write_text("theirs")
        path.chmod(mode)
        os.chown(path, NOBODY, NOBODY)
    before = os.umask(0o077)
    try:
        write_file(open_to_all, "mine")
    finally:
        os.umask(before)
    write_file(closed, "mine")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (open_to_all, closed)] == [0o600, 0o600]
    assert open_to_all.stat().st_uid == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, FileExistsError, ValueError])
def test_a_block_that_fails_leaves_the_target_as_it_was(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(error), replacing(path) as file:
        file.write(b"half")
        raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@needs_root
def test_a_folder_that_may_be_written_to_and_not_listed(tmp_path: Path) -> None:
    folder = tmp_path / "drop"
    folder.mkdir()
    folder.chmod(0o300)
    os.chown(folder, NOBODY, NOBODY)
    for above in (tmp_path, *tmp_path.parents[:3]):
        above.chmod(above.stat().st_mode | 0o011)
    os.seteuid(NOBODY)
    try:
        write_file(folder / "file", "text")
    finally:
        os.seteuid(0)
    assert (folder / "file").read_text() == "text"
