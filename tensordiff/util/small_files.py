"""Reading a file whole that should be small: rules, sessions, suites. What it says of its size is not believed.

A device or a pipe says 0 and may never end. A pipe is read all the same, since a shell makes one of ``<(command)``.
"""

from __future__ import annotations

from pathlib import Path

MOST = 64 << 20
"""Bytes of the longest text that a person would name."""


class TooLong(ValueError):
    """There is more in it than there may be."""


def read_small(path: Path, most: int = MOST) -> bytes:
    """All of a file; raises ``TooLong`` where it has more than so many bytes."""
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise TooLong(f"it is longer than {most >> 20 or 1} MB")
    return content
