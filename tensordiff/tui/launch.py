"""What is to be compared, as it can be said before anything that compares is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tensordiff.session.request import Request


class Launch(NamedTuple):
    """Two sides by name, and how to say all the rest, called in a thread: that is where the loading begins."""

    reference: Path
    candidate: Path
    request: Callable[[], Request]
