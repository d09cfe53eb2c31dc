"""Writing files atomically: whole or not at all, and only where the user meant.

Every file that tensordiff writes for a person goes through here. (The shards and the journal of a dump grow while a
model runs; ``dump.native.shards`` creates them exclusively.) The content goes to a temporary file in the same folder,
which is then renamed to the target. A reader of the target sees the old content or the new, never half of it.

Other users may be able to write to the folder, so:

- The temporary file has a random name and is created exclusively, so a file that somebody planted under that name is
  neither followed nor overwritten. The folder and the file stay open meanwhile, so neither can be swapped.
- If the target is a symbolic link that belongs to the user or to root, the link stays and the file it points to is
  replaced: rules and reports are often links into a repository. A link of anyone else is refused, because they could
  make ``/tmp/report.html`` point anywhere. Links among the parent folders are left to the system's own protection.
- A device, a pipe or a socket is refused. Renaming over it would destroy it: ``/dev/null``, if root does it.
- Nobody can read or write the temporary file who could not read or write the target. The permissions of the user's own
  file are kept; those of somebody else's file are applied only where they are stricter.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tensordiff.errors import WriteError, printable
from tensordiff.util.remote import refuse_url

_TEMPORARY = re.compile(r"\.tensordiff-[0-9a-f]{16}")
_NEW_FILE_MODE = 0o666  # the umask removes some
_FOLDER_FLAGS = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)  # works without permission to list
_MOST_LINKS = 40  # the limit of Linux


def write_file(path: str | os.PathLike[str], content: str | bytes, *, make_folders: bool = False) -> None:
    """Create or replace a file; raises ``WriteError``.

    Text is written as UTF-8. A lone surrogate, which UTF-8 cannot encode, is written as the escape ``\\udc80``.
    """
    refuse_url(path)
    target = Path(path)
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    try:
        if make_folders:
            target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(follow_link(target), data)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise WriteError(
            f"{printable(target)}: cannot be written ({why}); check the path and its permissions"
        ) from error


def replace_file(target: Path, data: bytes, *, sync: bool = True) -> None:
    """Like ``write_file``, but without following links or rewording errors.

    ``sync`` waits until the bytes are on the disk.
    """
    with replacing(target, sync=sync) as file:
        file.write(data)


@contextmanager
def replacing(target: Path, *, sync: bool = True) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing that becomes the target when the block ends without an error.

    Raises ``OSError``, and ``WriteError`` for a target that must not be replaced. Does not follow links.
    """
    folder = os.open(target.parent, _FOLDER_FLAGS)
    try:
        old, name = _existing(target, folder), f".tensordiff-{secrets.token_hex(8)}"
        try:
            with os.fdopen(_create_temporary(name, folder, old), "wb") as file:
                yield file
                file.flush()
                if old is not None:
                    _take_permissions(file.fileno(), old)
                if sync:
                    os.fsync(file.fileno())
            os.replace(name, target.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException as error:
            is_planted = isinstance(error, FileExistsError) and error.filename == name
            if not is_planted:  # else somebody else made the file, and we must not delete it
                with suppress(OSError):  # the first failure is the one to report
                    os.unlink(name, dir_fd=folder)
            raise
    finally:
        os.close(folder)


def is_temporary_name(name: str) -> bool:
    """Whether a file is the temporary file of a process that was killed while it wrote."""
    return _TEMPORARY.fullmatch(name) is not None


def follow_link(path: Path) -> Path:
    """Resolve a path that is a symbolic link; raises ``WriteError`` for a link that must not be followed.

    To write into a folder, call this before anything is written to it.
    """
    target = path
    for _ in range(_MOST_LINKS):
        try:
            status = target.lstat()
        except FileNotFoundError:
            return target
        if not stat.S_ISLNK(status.st_mode):
            return target
        if status.st_uid not in (0, os.geteuid()):
            raise WriteError(
                f"{printable(path)}: is a link that another user made, and is not followed; name the file it should be"
            )
        pointed = target.readlink()
        if not _is_same_link(status, target.lstat()):
            raise WriteError(f"{printable(path)}: is a link that changes while it is read; name the file it should be")
        target = target.parent / pointed
    raise WriteError(f"{printable(path)}: is a link that leads nowhere but to links; name the file it should be")


def _is_same_link(link: os.stat_result, later: os.stat_result) -> bool:
    return (link.st_dev, link.st_ino, link.st_ctime_ns) == (later.st_dev, later.st_ino, later.st_ctime_ns)


def _existing(target: Path, folder: int) -> os.stat_result | None:
    """The status of the file to be replaced, None if there is none; raises for anything but a regular file."""
    try:
        status = os.stat(target.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(status.st_mode):
        return status
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    kind = "a link" if stat.S_ISLNK(status.st_mode) else "a device, a pipe or a socket"
    raise WriteError(f"{printable(target)}: is {kind}, and is not replaced by a file; give the name of a file")


def _create_temporary(name: str, folder: int, old: os.stat_result | None) -> int:
    """Create the temporary file.

    Its group may differ from the group of the old file, so the group gets only the permissions that everyone has.
    """
    mode, flags = _NEW_FILE_MODE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    if old is not None:
        everyone = old.st_mode & 0o007
        mode = old.st_mode & 0o700 | everyone << 3 | everyone
    return os.open(name, flags, mode, dir_fd=folder)


def _take_permissions(file: int, old: os.stat_result) -> None:
    """Give the new file the group and permissions of the user's own old file, as far as the system allows."""
    if old.st_uid != os.geteuid():
        return
    with suppress(PermissionError):
        os.fchown(file, -1, old.st_gid)
    if os.fstat(file).st_gid == old.st_gid:
        os.fchmod(file, stat.S_IMODE(old.st_mode) & 0o777)
