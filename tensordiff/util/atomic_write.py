"""Files written whole or not at all.

The content goes to a temporary file in the same folder, which then takes the target's name: whoever opens the target
sees the old content or the new, never half of it. The temporary file is created exclusively, so a link planted under
its name is not followed.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from tensordiff.errors import WriteError, printable


def write_file(path: str | os.PathLike[str], content: str | bytes, *, make_folders: bool = False) -> None:
    """Replace a file, or make a new one; raises ``WriteError``. A target that is a link stays a link.

    Text is written as UTF-8; a lone surrogate, which UTF-8 has no bytes for, is spelled out as ``\\udc80``.
    """
    target = Path(path)
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    try:
        if make_folders:
            target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target.resolve(), data)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise WriteError(
            f"{printable(target)}: cannot be written ({why}); check the path and its permissions"
        ) from error


def replace_file(target: Path, data: bytes, *, partial: Path | None = None, sync: bool = True) -> None:
    """The same without resolving links or rewording errors; an existing file's permissions are kept.

    ``partial`` is the temporary file's name where others must know it, a random one by default. ``sync`` waits until
    the disk has the bytes.
    """
    partial = partial or target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    file = partial.open("xb")  # outside of the try: what cannot be created is not ours to delete
    try:
        with file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        if target.exists():
            partial.chmod(target.stat().st_mode)
        partial.replace(target)
    except BaseException:
        with suppress(OSError):  # the first failure is the one to report
            partial.unlink(missing_ok=True)
        raise
