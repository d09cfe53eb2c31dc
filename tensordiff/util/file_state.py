"""Whether files have changed: the state of a file, or of a folder with all its files, as a short text.

The state of a small file is its content, so a copy of it has the same state. For a large file it is what the system
reports: size, times, and which file it is. Size and modification time alone would also match after ``cp -p``, so the
change time (ctime) is included, which nobody can set back. A file that was written a moment ago could be written again
without any of these changing, so its state equals no other.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import time
from functools import lru_cache
from pathlib import Path

ABSENT = "absent"
_SMALL_FILE = 1 << 20
_MOST_BYTES_READ = 64 << 20  # of small files in one folder; beyond that, they are treated like large ones
_MOST_FILES = 200_000
_JUST_NOW_NS = 50_000_000  # the clocks of file systems tick a few milliseconds apart


class TooManyFiles(Exception):
    """A folder holds too many files for its state to be worth computing."""


def file_state(path: str | os.PathLike[str]) -> str:
    """The state of one file; a link is followed."""
    try:
        status = Path(path).stat()
        return _state(str(path), status, by_content=status.st_size <= _SMALL_FILE)
    except OSError:
        return ABSENT


def tree_state(path: Path, without: Path | None = None) -> str:
    """The state of a file, or of all files in a folder except those in ``without``; raises ``TooManyFiles``.

    Python's bytecode caches are left out, since they follow from their source files.
    """
    if not path.is_dir():
        return file_state(path)
    digest, bytes_left = hashlib.sha256(), _MOST_BYTES_READ
    for name in _names(path, _folder_identity(without)):
        try:
            status = (path / name).stat()
            by_content = status.st_size <= min(_SMALL_FILE, bytes_left)
            state = _state(str(path / name), status, by_content=by_content)
            bytes_left -= status.st_size if by_content else 0
        except OSError:
            state = ABSENT
        digest.update(f"{name}\0{state}\0".encode("utf-8", "backslashreplace"))
    return f"folder {digest.hexdigest()[:32]}"


def written_since(path: str, since_ns: int) -> bool:
    """Whether a file was changed since a time, or may have been."""
    try:
        return os.stat(path).st_ctime_ns > since_ns - _JUST_NOW_NS  # noqa: PTH116 - asked of thousands
    except OSError:
        return True


def _folder_identity(folder: Path | str | None) -> tuple[int, int] | None:
    try:
        status = None if folder is None else Path(folder).stat()
    except OSError:
        return None
    return status and (status.st_dev, status.st_ino)


def _names(folder: Path, without: tuple[int, int] | None) -> list[str]:
    """The files in a folder and its subfolders; links are followed, and each folder is entered once."""
    names: list[str] = []
    seen = {without}
    for parent, folders, files in os.walk(folder, followlinks=True):
        identity = _folder_identity(parent)
        if identity in seen or parent.endswith(f"{os.sep}__pycache__"):
            folders.clear()
            continue
        seen.add(identity)
        names += (os.path.relpath(f"{parent}{os.sep}{name}", folder) for name in files)
        if len(names) > _MOST_FILES:
            raise TooManyFiles(f"holds more than {_MOST_FILES:,} files")
    return sorted(names)


def _state(path: str, status: os.stat_result, *, by_content: bool) -> str:
    if not stat.S_ISREG(status.st_mode):
        return f"kind {stat.S_IFMT(status.st_mode):o}"
    identity = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino)
    just_now = time.time_ns() - status.st_ctime_ns < _JUST_NOW_NS
    if by_content:
        return _content(path) if just_now else _known_content(path, identity)
    return f"just written {secrets.token_hex(8)}" if just_now else f"file {' '.join(map(str, identity))}"


@lru_cache(maxsize=_MOST_FILES)
def _known_content(path: str, identity: tuple[int, ...]) -> str:
    """The hash of a file's content, computed once for as long as the system reports the same identity."""
    del identity  # only a key of the cache
    return _content(path)


def _content(path: str) -> str:
    with open(path, "rb", opener=open_without_waiting) as file:
        return f"sha256 {hashlib.file_digest(file, 'sha256').hexdigest()[:32]}"


def open_without_waiting(path: str, flags: int) -> int:
    """An ``opener`` for files that somebody may have replaced by a pipe: opening a pipe would wait for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)
