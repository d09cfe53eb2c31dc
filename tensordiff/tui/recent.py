"""Pairs of dumps that were opened lately, kept in the user's state folder.

A convenience: where the file cannot be read or written there are no recent pairs, and nothing else fails.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

MOST = 20


class Recent(NamedTuple):
    """Two dumps that were compared."""

    reference: str
    candidate: str


def recent_file() -> Path:
    """Where they are kept."""
    from platformdirs import user_state_path

    return user_state_path("tensordiff", appauthor=False) / "recent.json"


def read_recent(path: Path | None = None) -> list[Recent]:
    """Latest first; none where the file is not there or is damaged."""
    try:
        found = json.loads((path or recent_file()).read_text("utf-8"))
        return [Recent(str(reference), str(candidate)) for reference, candidate in found][:MOST]
    except (OSError, ValueError, TypeError, RecursionError):
        return []


def note_recent(reference: Path, candidate: Path, path: Path | None = None) -> None:
    """Put a pair first."""
    pair = Recent(str(reference.absolute()), str(candidate.absolute()))
    _write([pair, *(one for one in read_recent(path) if one != pair)], path)


def forget_recent(pair: Recent, path: Path | None = None) -> None:
    """Take a pair off."""
    _write([one for one in read_recent(path) if one != pair], path)


def _write(pairs: list[Recent], path: Path | None) -> None:
    path = path or recent_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(pairs[:MOST], indent=1), "utf-8")
        beside.replace(path)
    except OSError:
        return  # a list of recent pairs is not worth a sentence
