"""Several files that make one dump.

Each file is opened by itself; one that cannot be read is listed as a problem and the rest stay
usable. A name that two files have is kept from the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from tensordiff.dump.detect import DumpPath
from tensordiff.dump.model import Dump, Entry, Problem
from tensordiff.errors import BadFile


class FilePart(NamedTuple):
    """One file of a dump, opened."""

    file: str
    entries: list[Entry]
    ordered: bool
    problems: list[Problem]
    facts: Mapping[str, object]


def open_parts(found: DumpPath, format_: str, names: list[str], open_part: Callable[[Path], FilePart]) -> Dump:
    """Open the named files of a folder as one dump; raises only if none can be opened."""
    parts: list[FilePart] = []
    errors: list[BadFile] = []
    for name in names:
        try:
            parts.append(open_part(found.path / name))
        except BadFile as error:
            errors.append(error)
    if not parts:
        raise errors[0]
    unread = [Problem(Path(error.path).name, error.problem, is_unread=True) for error in errors]
    return join_parts(found, format_, parts, unread)


def join_parts(found: DumpPath, format_: str, parts: list[FilePart], problems: list[Problem]) -> Dump:
    """One dump of all parts; its order is known only if each part's is."""
    entries, twins = _without_twins(parts)
    return Dump(
        path=found.path,
        format=format_,
        entries=entries,
        ordered=all(part.ordered for part in parts),
        problems=(
            *found.problems,
            *problems,
            *(problem for part in parts for problem in part.problems),
            *twins,
        ),
        facts={key: value for part in reversed(parts) for key, value in part.facts.items()},
    )


def _without_twins(parts: list[FilePart]) -> tuple[tuple[Entry, ...], list[Problem]]:
    kept: dict[str, Entry] = {}
    twins = [
        Problem(part.file, f"has tensor {item.name!r:.120}, which another file had first", is_unread=True)
        for part in parts
        for item in part.entries
        if kept.setdefault(item.name, item) is not item
    ]
    return tuple(kept.values()), twins
