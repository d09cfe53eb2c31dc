"""Captures of sources, with the type that they have where mypy knows torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensordiff
from tensordiff.library.runs import CapturedDump


def captured(source: str, folder: Path, **options: Any) -> CapturedDump:
    """A source, run into a dump."""
    made: object = tensordiff.capture(source, folder, **options)
    assert isinstance(made, CapturedDump)
    return made
