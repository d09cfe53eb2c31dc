"""The sample dumps: beside the package in a checkout, inside it in an install."""

from __future__ import annotations

from pathlib import Path

from tensordiff.errors import NotADump


def sample(name: str) -> Path:
    """The path of one sample dump."""
    here = Path(__file__).resolve().parents[1]
    for folder in (here.parent / "sample_dumps", here / "sample_dumps"):
        if (folder / name).exists():
            return folder / name
    raise NotADump(f"the sample dump {name!r} is not installed; clone the project and run make demo")
