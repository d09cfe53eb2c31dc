"""Folders that go when the process ends, however it ends; nothing goes that was not made here."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tensordiff.util.temporary_folders import (
    is_temporary,
    keep_temporary_folder,
    make_temporary_folder,
    remove_temporary_folder,
    temporary_folder,
)
from tests import processes


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory of the test's own."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path / "tmp"


MAKE = """
import sys, time
from pathlib import Path
from tensordiff.util.temporary_folders import *
folder = make_temporary_folder()
(folder / "file").write_text("x")
"""


def left(temporary: Path, script: str) -> list[Path]:
    """What a process leaves in the temporary directory."""
    processes.run([sys.executable, "-c", MAKE + script], check=False)
    return sorted(temporary.iterdir())


@pytest.mark.parametrize(
    "script", ["", "sys.exit(3)", "raise KeyboardInterrupt", "1 / 0", "remove_temporary_folder(folder)"]
)
def test_it_goes_when_the_process_ends(temporary: Path, script: str) -> None:
    assert left(temporary, script) == []


def test_what_is_kept_stays(temporary: Path) -> None:
    (folder,) = left(temporary, "assert keep_temporary_folder(folder / 'dump'); assert not is_temporary(folder)")
    assert (folder / "file").exists()


def test_what_took_its_name_stays(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("")
    swap = f"folder.rename({str(tmp_path / 'moved')!r}); folder.symlink_to({str(tmp_path / 'mine')!r})"
    (link,) = left(temporary, swap)
    assert link.is_symlink() and (tmp_path / "mine" / "file").exists() and (tmp_path / "moved" / "file").exists()
    link.unlink()
    (folder,) = left(temporary, f"folder.rename({str(tmp_path / 'again')!r}); folder.mkdir(); (folder / 'x').touch()")
    assert (folder / "x").exists()


def test_links_within_it_go_and_what_they_lead_to_stays(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("")
    assert left(temporary, f"(folder / 'link').symlink_to({str(tmp_path / 'mine')!r})") == []
    assert (tmp_path / "mine" / "file").exists()


def test_a_process_forked_from_it_removes_nothing(temporary: Path) -> None:
    fork = """
if (pid := os.fork()) == 0:
    sys.exit()  # runs what is to be done at the end
os.waitpid(pid, 0)
assert (folder / "file").exists()
keep_temporary_folder(folder)
"""
    (folder,) = left(temporary, fork)
    assert (folder / "file").exists()


def test_for_the_length_of_a_block(temporary: Path) -> None:
    with pytest.raises(ZeroDivisionError), temporary_folder() as folder:
        assert folder.parent == temporary and is_temporary(folder / "dump" / "file")
        raise ZeroDivisionError
    assert not folder.exists() and not is_temporary(folder)


def test_only_what_was_made_here_is_removed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    remove_temporary_folder(tmp_path / "mine")
    assert (tmp_path / "mine").is_dir()
    assert not is_temporary(tmp_path / "mine") and not keep_temporary_folder(tmp_path / "mine")


def test_one_that_is_gone_already_is_no_error() -> None:
    folder = make_temporary_folder()
    shutil.rmtree(folder)
    remove_temporary_folder(folder)
    assert not is_temporary(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_while_they_go_leaves_nothing_behind(temporary: Path, number: signal.Signals) -> None:
    send = f"""
import os, shutil
real = shutil.rmtree
def interrupted(*args, **kwargs):
    os.kill(os.getpid(), {int(number)})
    real(*args, **kwargs)
shutil.rmtree = interrupted
"""
    with processes.started([sys.executable, "-c", MAKE + send], stderr=subprocess.PIPE) as process:
        assert process.communicate(timeout=processes.PATIENCE_S)[1] == b""
    assert process.returncode == 0
    assert list(temporary.iterdir()) == []
