"""Opening a dump whose format is not known.

``open_dump`` shows the path to each reader in turn (``readers.READERS``, most particular first); the
first that knows it opens it, and what else looks like tensors beside it is a problem (``leftovers``). A
folder of folders ``0``, ``1``, … is the steps of one run.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from tensordiff.dump.files import NOT_A_FILE
from tensordiff.dump.folders import RANK_FOLDER, DumpPath
from tensordiff.dump.leftovers import is_checkpoint, leftovers
from tensordiff.dump.model import Dump, Problem
from tensordiff.dump.names import natural_key
from tensordiff.dump.ranks import RankPart, join_ranks
from tensordiff.dump.readers import PLAIN_FORMATS, SUFFIXES, readers
from tensordiff.errors import BadFile, DumpError, NotADump, printable
from tensordiff.util.mappings import put_handler_first

_LOOKED_INTO = 64
_KNOWN = ", ".join(SUFFIXES)


def open_dump(path: str | os.PathLike[str]) -> Dump:
    """Open whatever dump lies at a path. Reads headers at most."""
    at = DumpPath(Path(path))
    put_handler_first()
    try:
        if not at.path.exists():
            raise NotADump(f"{printable(path)}: no such file or folder; check the path")
        if not at.is_folder and not at.path.is_file():
            raise BadFile(path, NOT_A_FILE)
        if (dump := _ask_readers(at)) is None and (dump := _open_numbered(at)) is None:
            raise NotADump(f"{printable(path)}: {_why_not(at)}")
        return dump.with_fit_names()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise NotADump(f"{printable(path)}: cannot be opened ({why}); check the path and its permissions") from error


def _open_numbered(at: DumpPath) -> Dump | None:
    """Folders of ranks or of steps, each a dump, as one."""
    dump = _open_ranks(at)
    return _open_steps(at) if dump is None else dump


def _ask_readers(at: DumpPath) -> Dump | None:
    """What the first reader that knows a path makes of it; what else lies in its folder is looked at, too."""
    dump = next((dump for try_open in readers() if (dump := try_open(at)) is not None), None)
    if dump is None or not at.is_folder:
        return dump
    if dump.format in PLAIN_FORMATS and not is_checkpoint(at.files, dump.files):
        dump = _with_other_formats(at, dump)
    return _with_leftovers(at, dump, dump.files)


def _with_other_formats(at: DumpPath, dump: Dump) -> Dump:
    """A dump whose tensors lie in files of several formats, such as ``inputs.safetensors`` beside ``outputs.pt``."""
    for try_open in readers():
        rest = at.without(dump.files)
        try:
            more = try_open(rest) if rest.files else None
        except DumpError:
            continue  # what is left is named
        if more is None or more.format not in PLAIN_FORMATS or more.format == dump.format:
            continue
        names = {(entry.name, entry.step) for entry in dump.entries}
        twice = [entry for entry in more.entries if (entry.name, entry.step) in names]
        why = f"has tensor {{!r:.120}} that {dump.format} files have too; only the first is read"
        dump = replace(
            dump,
            format=f"{dump.format}+{more.format}",
            entries=(*dump.entries, *(entry for entry in more.entries if (entry.name, entry.step) not in names)),
            ordered=False,
            problems=(
                *dump.problems,
                *(problem for problem in more.problems if problem not in at.problems),
                *(Problem(sorted(more.files)[0], why.format(entry.name), is_unread=True) for entry in twice),
            ),
            files=dump.files | more.files,
        )
    return dump


def _with_leftovers(at: DumpPath, dump: Dump, taken: Collection[str]) -> Dump:
    left = tuple(leftovers(at, taken))
    return replace(dump, problems=dump.problems + left) if left else dump


def _open_steps(at: DumpPath) -> Dump | None:
    """Folders named by number, each a dump, as the steps of one run. A step that cannot be opened is a problem."""
    if not at.is_folder:
        return None
    folders, duplicates = _step_folders(at)
    dumps: dict[int, Dump] = {}
    unread: list[Problem] = []
    errors: list[DumpError] = []
    for step, name in folders.items():
        try:
            dump = _ask_readers(DumpPath(at.path / name))
        except DumpError as error:
            errors.append(error)
            unread.append(_broken_step(name, error))
        else:
            if dump is None:
                why = "holds no tensors we know, though the other steps do; capture it again, or remove it"
                unread.append(Problem(name, why, is_unread=True))
            else:
                dumps[step] = dump
    if not dumps:
        if errors:
            raise errors[0]
        return None
    below = (p._replace(file=f"{folders[step]}/{p.file}") for step, dump in dumps.items() for p in dump.problems)
    whole = replace(
        next(iter(dumps.values())),
        path=at.path,
        entries=tuple(e._replace(step=step) for step, dump in dumps.items() for e in dump.entries),
        ordered=all(dump.ordered for dump in dumps.values()),
        interrupted=any(dump.interrupted for dump in dumps.values()),
        problems=(*at.problems, *duplicates, *unread, *below),
        files=frozenset(folders.values()),
    )
    return _with_leftovers(at, whole, {*folders.values(), *(problem.file for problem in duplicates)})


def _open_ranks(at: DumpPath) -> Dump | None:
    """Folders ``rank0``, ``rank1``, each a dump, as one run."""
    matches = {name: match for name in at.folders if (match := RANK_FOLDER.fullmatch(name))} if at.is_folder else {}
    parts: list[RankPart] = []
    problems: list[Problem] = list(at.problems)
    first: Dump | None = None
    ordered = True
    for name, match in matches.items():
        below = DumpPath(at.path / name)
        try:
            dump = _ask_readers(below)
            dump = _open_steps(below) if dump is None else dump
        except DumpError as error:
            problems.append(_broken_step(name, error))
            continue
        if dump is None:
            problems.append(Problem(name, "holds no tensors we know, though other ranks may; look into it", True))
            continue
        first, ordered = dump if first is None else first, ordered and dump.ordered
        parts += (RankPart(int(match[1]), entry) for entry in dump.entries)
        problems += (problem._replace(file=f"{name}/{problem.file}") for problem in dump.problems)
    if first is None:
        return None
    joined = join_ranks(parts)
    whole = replace(
        first,
        path=at.path,
        entries=joined.entries,
        ordered=ordered,
        problems=(*problems, *joined.problems),
        files=frozenset(matches),
    )
    return _with_leftovers(at, whole, matches)


def _broken_step(name: str, error: DumpError) -> Problem:
    """A step whose files cannot be opened."""
    if isinstance(error, BadFile):
        return Problem(f"{name}/{Path(error.path).name}", error.problem, is_unread=True)
    return Problem(name, f"cannot be opened ({error}); capture it again, or remove it", is_unread=True)


def _step_folders(at: DumpPath) -> tuple[dict[int, str], tuple[Problem, ...]]:
    """The folder of each step, and the folders left out because another has that number too."""
    names = [name for name in at.folders if name.isdecimal()]
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
    if not at.files and not at.folders:
        left = f"; {at.problems[0].file} {at.problems[0].sentence}" if at.problems else ""
        return f"is an empty folder; was the dump written somewhere else?{printable(left)}"
    return f"holds no tensors we know ({_KNOWN}){_dumps_below(at)}"


def _dumps_below(at: DumpPath) -> str:
    """What to open instead: the folders in this one that are dumps by themselves."""
    found = []
    for name in at.folders[:_LOOKED_INTO]:
        below = DumpPath(at.path / name)
        try:
            if _ask_readers(below) is not None or _open_numbered(below) is not None:
                found.append(name)
        except (DumpError, OSError):
            continue
    if len(found) == 1:
        return f"; did you mean {printable(at.path / found[0])}?"
    if found:
        some = ", ".join(map(printable, found[:3]))
        return (
            f"; {len(found)} of its folders are dumps of their own ({some}{', …' if len(found) > 3 else ''}): name one"
        )
    return ""
