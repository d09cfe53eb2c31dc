"""How a comparison is streamed, as it is asked for: by itself, as commands that do not stream need no more of it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

WINDOW_BYTES = 2 * 10**9
Keep = Literal["diverging", "none", "all"]


class StreamOptions(NamedTuple):
    """How a comparison is streamed."""

    window_bytes: int = WINDOW_BYTES
    """How much of both sides may wait to be compared, or to be looked at again."""
    keep: Keep = "diverging"
    folder: Path | None = None
    """Where it is kept, in a folder for each side; None is nowhere."""
    stops: bool = False
    """Whether the runs end at the first culprit."""
