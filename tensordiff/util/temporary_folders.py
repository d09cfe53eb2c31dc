"""Temporary folders that are removed when this process ends, whether by itself, by Ctrl-C or by a signal.

SIGTERM counts where the command line runs the process. Only folders that were made here are removed: if another folder
took the name of one, it stays. Links inside are removed, and their targets are not. A process that was forked from this
one removes nothing.

A killed process cannot clean up. A *claimed* folder therefore holds a file that is locked while its process lives, so
that a later process can tell abandoned folders from used ones and remove them (``remove_abandoned``).
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple


class _FolderIdentity(NamedTuple):
    """Identifies a folder, even if another takes its name, and the process that made it."""

    device: int
    inode: int
    pid: int


_folders: dict[Path, _FolderIdentity] = {}


def make_temporary_folder(prefix: str = "tensordiff-", inside: Path | None = None) -> Path:
    """Make an empty folder that only this user can read, in the temporary directory or in ``inside``."""
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=inside)).absolute()
    status = path.lstat()
    _folders[path] = _FolderIdentity(status.st_dev, status.st_ino, os.getpid())
    return path


@contextmanager
def temporary_folder(prefix: str = "tensordiff-") -> Iterator[Path]:
    """A temporary folder for the length of a block."""
    path = make_temporary_folder(prefix)
    try:
        yield path
    finally:
        remove_temporary_folder(path)


def remove_temporary_folder(path: Path) -> None:
    """Remove a folder that was made here, with its content.

    Does nothing for any other folder, or one that is to be kept.
    """
    identity = _folders.get(path)
    if identity is None or identity.pid != os.getpid():
        return
    with suppress(OSError):  # it is gone already
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode) and (status.st_dev, status.st_ino) == (identity.device, identity.inode):
            shutil.rmtree(path, ignore_errors=True)  # when a process ends, nobody can act on a failure
    _folders.pop(path, None)


def is_temporary(path: Path) -> bool:
    """Whether a path lies in a folder that is removed when this process ends."""
    return _folder_of(path) is not None


def keep_temporary_folder(path: Path) -> bool:
    """Keep the temporary folder that a path lies in; returns False if it would have stayed anyway."""
    folder = _folder_of(path)
    return folder is not None and _folders.pop(folder, None) is not None


def _folder_of(path: Path) -> Path | None:
    path = path.absolute()
    return next((folder for folder in (path, *path.parents) if folder in _folders), None)


@atexit.register
def remove_temporary_folders() -> None:
    """Remove all folders that were made here; called when the process ends."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):  # a second Ctrl-C must not interrupt the removal
            signal.signal(number, signal.SIG_IGN)
    for path in list(_folders):
        remove_temporary_folder(path)


# --- folders that are known to be in use ------------------------------------------------------------

_LOCK = "lock"


class ClaimedFolder(NamedTuple):
    """A folder of this process, and the open file whose lock shows others that it is in use."""

    path: Path
    lock: int

    def remove(self) -> None:
        """Remove it with its content."""
        os.close(self.lock)
        remove_temporary_folder(self.path)


def make_claimed_folder(prefix: str, inside: Path | None = None) -> ClaimedFolder:
    """Make an empty, claimed folder, in the temporary directory or in ``inside``."""
    folder = make_temporary_folder(prefix, inside)
    lock = os.open(folder / "new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    (folder / "new").rename(folder / _LOCK)  # locked before anyone sees it
    return ClaimedFolder(folder, lock)


def remove_abandoned(prefix: str, inside: Path) -> None:
    """Remove the folders that killed processes of this user left, which would take up space for ever."""
    for folder in inside.glob(f"{prefix}*"):
        with suppress(OSError):  # it is someone else's, or in use, or gone
            if folder.lstat().st_uid != os.getuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
