"""Read a whole file that should be small (rules, sessions, suites), without trusting its reported size.

A device or a pipe reports size 0 and may never end. A pipe is read all the same, since a shell makes one of
``<(command)``.
"""

from __future__ import annotations

from pathlib import Path

MOST = 64 << 20
"""Bytes of the longest text that a person would name."""


class TooLong(ValueError):
    """The file is longer than allowed."""


def read_small(path: Path, most: int = MOST) -> bytes:
    """The content of a file; raises ``TooLong`` if it has more than ``most`` bytes."""
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise TooLong(f"it is longer than {most >> 20 or 1} MB")
    return content
