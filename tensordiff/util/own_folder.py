"""A folder that nobody but this user can have written to: for files that are believed, such as compiled code.

A file is read and written only by way of the open folder, after a look at who owns it and who may write to it. So
neither a folder that somebody else made under the name, nor one put in its place later, nor a link is ever used.
Where there is no such folder, or the disk is full or cannot be written, there are no files; nothing fails.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_CAN_LOOK = os.open in os.supports_dir_fd and hasattr(os, "geteuid")


class OwnFolder:
    """Small files, each whole or not there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str) -> bytes | None:
        """The content of a file; None where there is none that can be believed."""
        try:
            with self._opened() as folder:
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
                with os.fdopen(file, "rb") as opened:
                    return opened.read() if stat.S_ISREG(os.fstat(file).st_mode) else None
        except OSError:
            return None

    def write(self, name: str, content: bytes) -> bool:
        """Make or replace a file, and the folder, too, if there is none; whether that worked."""
        try:
            self.path.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
            with self._opened() as folder:
                _replace(folder, name, content)
        except OSError:
            return False
        return True

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The open folder, for use as ``dir_fd``; raises ``OSError`` where it is not ours alone."""
        if not _CAN_LOOK:
            raise PermissionError("who owns a folder cannot be told on this system")
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(folder)
            if found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
                raise PermissionError(f"{self.path} is not this user's alone")
            yield folder
        finally:
            os.close(folder)


def _replace(folder: int, name: str, content: bytes) -> None:
    partial = f".{name}.{secrets.token_hex(8)}"
    file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(content)
        os.replace(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):  # the first failure is the one that counts
            os.unlink(partial, dir_fd=folder)
        raise
