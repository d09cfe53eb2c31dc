"""Temporary folders that are known to be in use, so that those of processes that were killed can be removed by others.

A file in such a folder is locked as long as its process lives, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from tensordiff.util.temporary_folders import make_temporary_folder, remove_temporary_folder

_LOCK = "lock"


class ClaimedFolder(NamedTuple):
    """A folder of this process, and the open file that shows others that it is in use."""

    path: Path
    lock: int

    def remove(self) -> None:
        """Remove it and all that is in it."""
        os.close(self.lock)
        remove_temporary_folder(self.path)


def make_claimed_folder(prefix: str, inside: Path | None = None) -> ClaimedFolder:
    """A new, empty folder; ``inside`` another than the temporary directory."""
    folder = make_temporary_folder(prefix, inside)
    lock = os.open(folder / "new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    (folder / "new").rename(folder / _LOCK)  # locked before anyone sees it
    return ClaimedFolder(folder, lock)


def remove_abandoned(prefix: str, inside: Path) -> None:
    """Remove the folders of this user's processes that were killed: they would take room for ever."""
    for folder in inside.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # it is someone else's, or in use, or gone
            if folder.lstat().st_uid != os.getuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
