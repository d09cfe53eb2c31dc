"""The options of a streamed comparison; in a module of their own, so that other commands import nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

WINDOW_BYTES = 2 * 10**9
Keep = Literal["diverging", "none", "all"]


class StreamOptions(NamedTuple):
    """The options of a streamed comparison."""

    window_bytes: int = WINDOW_BYTES
    """How many bytes of both sides may wait to be compared, or stay to be read again."""
    keep: Keep = "diverging"
    folder: Path | None = None
    """Where tensors are kept, in a folder per side; None keeps them nowhere."""
    stops: bool = False
    """Whether the runs end at the first culprit."""
