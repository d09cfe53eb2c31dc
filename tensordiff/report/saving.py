"""Putting a report in its place: whole or not at all, and whatever characters its names have."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tensordiff.errors import WriteError, printable


def encoded(text: str) -> bytes:
    """UTF-8; a lone surrogate, which has none, is spelled out."""
    return text.encode("utf-8", "backslashreplace")


def save(path: str | os.PathLike[str], content: bytes) -> None:
    """Put a file in its place, whole or not at all."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(content)
        beside.replace(target)
    except OSError as error:
        with suppress(OSError):  # what failed is worth telling, not that nothing was left behind
            beside.unlink(missing_ok=True)
        raise WriteError(f"{printable(target)}: the report could not be written: {error.strerror or error}") from error
