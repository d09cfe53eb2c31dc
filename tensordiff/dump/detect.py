"""Opening a dump whose format is not known.

``open_dump`` shows the path to each reader in turn (``readers.READERS``, most particular first); the
first that knows it opens it. A folder of folders ``0``, ``1``, … is the steps of one run.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from tensordiff.dump.folders import DumpPath
from tensordiff.dump.model import Dump, Problem
from tensordiff.dump.names import natural_key
from tensordiff.dump.readers import SUFFIXES, readers
from tensordiff.errors import NotADump, printable

_KNOWN = ", ".join(SUFFIXES)


def open_dump(path: str | os.PathLike[str]) -> Dump:
    """Open whatever dump lies at a path. Reads headers at most."""
    at = DumpPath(Path(path))
    try:
        if not at.path.exists():
            raise NotADump(f"{printable(path)}: no such file or folder; check the path")
        if (dump := _ask_readers(at)) is None and (dump := _open_steps(at)) is None:
            raise NotADump(f"{printable(path)}: {_why_not(at)}")
        return dump
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise NotADump(f"{printable(path)}: cannot be opened ({why}); check the path and its permissions") from error


def _ask_readers(at: DumpPath) -> Dump | None:
    return next((dump for try_open in readers() if (dump := try_open(at)) is not None), None)


def _open_steps(at: DumpPath) -> Dump | None:
    """Folders named by number, each a dump, as the steps of one run."""
    if not at.is_folder:
        return None
    folders, duplicates = _step_folders(at)
    opened = {step: _ask_readers(DumpPath(at.path / name)) for step, name in folders.items()}
    dumps = {step: dump for step, dump in opened.items() if dump is not None}
    if not dumps:
        return None
    first = next(iter(dumps.values()))
    why = "holds no tensors we know, though the other steps do; capture it again, or remove it"
    unknown = tuple(Problem(name, why, is_unread=True) for step, name in folders.items() if step not in dumps)
    return replace(
        first,
        path=at.path,
        entries=tuple(e._replace(step=step) for step, dump in dumps.items() for e in dump.entries),
        ordered=all(dump.ordered for dump in dumps.values()),
        interrupted=any(dump.interrupted for dump in dumps.values()),
        problems=at.problems
        + duplicates
        + unknown
        + tuple(p._replace(file=f"{folders[step]}/{p.file}") for step, dump in dumps.items() for p in dump.problems),
    )


def _step_folders(at: DumpPath) -> tuple[dict[int, str], tuple[Problem, ...]]:
    """The folder of each step, and the folders left out because another has that number too."""
    bad_links = {problem.file for problem in at.problems}
    names = [p.name for p in at.path.iterdir() if p.name.isdecimal() and p.is_dir() and p.name not in bad_links]
    folders: dict[int, str] = {}
    for name in sorted(names, key=lambda name: (natural_key(name), name)):
        folders.setdefault(int(name), name)
    duplicates = sorted(set(names) - set(folders.values()))
    why = "is left out: {} is step {} too"
    return folders, tuple(
        Problem(name, why.format(folders[int(name)], int(name)), is_unread=True) for name in duplicates
    )


def _why_not(at: DumpPath) -> str:
    if not at.is_folder:
        return f"is not a tensor file we know ({_KNOWN})"
    inside = sorted(p.name for p in at.path.iterdir() if p.is_dir())[:3]
    if not at.files and not inside:
        return "is an empty folder; was the dump written somewhere else?"
    hint = f"; did you mean {printable(at.path / inside[0])}?" if inside else ""
    return f"holds no tensors we know ({_KNOWN}){hint}"
