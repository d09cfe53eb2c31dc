"""What to compare, described without loading anything that compares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tensordiff.session.request import Request


class Launch(NamedTuple):
    """The names of two sides, and a function for the full request, which is called in a thread because it loads what
    compares.
    """

    reference: Path
    candidate: Path
    request: Callable[[], Request]
