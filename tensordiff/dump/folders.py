"""Where a dump lies: a file, or a folder whose files together make one dump.

``DumpPath`` is what every reader is given: the path, the names of a folder's files, and the first bytes of a file. A
dump may come from a stranger, so a folder's files must lie in that folder: links that lead out of it are reported and
not followed, and so are pipes, sockets and devices. Formats with several tensors per file open each file by itself with
``open_parts``: one that cannot be read is a problem, and the others stay usable.

``list_tree`` lists the files at any depth, for tools that write nested folders. A reader of a tree says which files it
used, and ``unused`` reports what else in it looks like tensors.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from tensordiff.dump.files import NOT_A_FILE, open_buffer, reason
from tensordiff.dump.model import Dump, Entry, EntryKey, Problem, entry
from tensordiff.dump.names import natural_key, step_of
from tensordiff.dump.readers import SUFFIXES
from tensordiff.errors import BadFile, NotADump, printable
from tensordiff.util.remote import RemotePath
from tensordiff.util.remote.store import listing

RANK_FOLDER = re.compile(r"(?:tp_?)?rank_?(\d{1,6})", re.IGNORECASE)
"""A folder with the files of one rank."""
_NAMELESS = frozenset(("data", "tensor", "value"))
"""Keys under which tools keep the only tensor of a file: transformers' debugger writes ``data``."""


@dataclass(frozen=True)
class DumpPath:
    """A path that may hold a dump. It is listed once, for all readers."""

    path: Path
    selected: str = ""
    """The text after ``::``, which selects one of several runs in a file."""

    @property
    def given(self) -> Path:
        """The path as it was given."""
        return type(self.path)(f"{self.path}::{self.selected}") if self.selected else self.path

    @cached_property
    def is_folder(self) -> bool:
        """Whether the path is a folder."""
        return self.path.is_dir()

    @property
    def folder(self) -> Path:
        """The folder itself, or the folder of the file."""
        return self.path if self.is_folder else self.path.parent

    @cached_property
    def _listing(self) -> Listing:
        return list_folder(self.path) if self.is_folder else Listing([], [], [])

    @property
    def files(self) -> list[str]:
        """Names of a folder's files in natural order; empty where the path is a file."""
        return self._listing.files

    @property
    def folders(self) -> list[str]:
        """Names of the folders in a folder in natural order; empty where the path is a file."""
        return self._listing.folders

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What was left out of a folder's listing, and why."""
        return tuple(self._listing.problems)

    @property
    def has_steps(self) -> bool:
        """Whether it has subfolders with numbers, like the steps of a run."""
        return any(step_of(name) is not None for name in self.folders)

    def with_suffix(self, *suffixes: str) -> list[str]:
        """Names of a folder's files that end in one of these suffixes, in natural order."""
        endings = self._endings  # every reader asks, and a folder may hold a hundred thousand files
        if endings <= set(suffixes):
            return list(self.files)
        if not any("." not in suffix or suffix[suffix.rfind(".") :] in endings for suffix in suffixes):
            return []
        return [name for name in self.files if name.lower().endswith(suffixes)]

    @cached_property
    def _endings(self) -> set[str]:
        """The part of each file's name from its last dot on; for a name without a dot, its last letter."""
        return {ending.lower() for ending in {name[name.rfind(".") :] for name in self.files}}

    def mentions(self, text: str) -> bool:
        """Whether the name of any file holds a text. Readers ask this before they look at a hundred thousand names."""
        return text in self._names

    @cached_property
    def _names(self) -> str:
        return "/".join(self.files)

    def without(self, names: Collection[str]) -> DumpPath:
        """The same folder without some of its files, and without its subfolders."""
        rest = DumpPath(self.path)
        left = [name for name in self.files if name not in names]
        rest.__dict__["_listing"] = Listing(left, [], list(self.problems))  # where the cached property is stored
        return rest

    @cached_property
    def head(self) -> bytes:
        """The first 64 bytes of a file, by which formats are recognized; empty for a folder."""
        return b"" if self.is_folder else open_buffer(self.path)[:64]


class Listing(NamedTuple):
    """The content of a folder: regular files and subfolders in natural order, and problems for what is neither."""

    files: list[str]
    folders: list[str]
    problems: list[Problem]


def list_folder(folder: Path) -> Listing:
    """List a folder.

    Links that lead out of it, and pipes, sockets and devices that are named like tensor files, are problems.
    """
    result = Listing([], [], [])
    if isinstance(folder, RemotePath):
        return _list_remote(folder)
    try:
        with os.scandir(folder) as items:
            for item in items:
                if item.is_symlink() and (why := _bad_link(folder, item.name)):
                    result.problems.append(Problem(item.name, why, is_unread=_may_hold_tensors(item)))
                elif item.is_file():
                    result.files.append(item.name)
                elif item.is_dir():
                    result.folders.append(item.name)
                elif _may_hold_tensors(item):
                    result.problems.append(Problem(item.name, NOT_A_FILE, is_unread=True))
    except OSError as error:
        raise NotADump(f"{printable(folder)}: cannot be listed ({reason(error)})") from error
    result.files.sort(key=natural_key)
    result.folders.sort(key=natural_key)
    result.problems.sort(key=lambda problem: natural_key(problem.file))
    return result


def _list_remote(folder: RemotePath) -> Listing:
    try:
        rows = listing(folder)
    except FileNotFoundError as error:
        raise NotADump(f"{printable(folder)}: cannot be listed (no such folder)") from error
    files = sorted((name for name, row in rows.items() if not row.is_folder), key=natural_key)
    return Listing(files, sorted((name for name, row in rows.items() if row.is_folder), key=natural_key), [])


def list_below(folder: Path) -> Listing:
    """List a subfolder of a dump; if it cannot be listed, it is empty except for that problem."""
    try:
        return list_folder(folder)
    except NotADump:
        return Listing([], [], [Problem("", "cannot be listed; what it holds is not read", is_unread=True)])


def _may_hold_tensors(item: os.DirEntry[str]) -> bool:
    """Whether an item is named like a tensor file, or is a folder or a link to one."""
    return item.name.lower().endswith(SUFFIXES) or step_of(item.name) is not None or _is_folder(item)


def _is_folder(item: os.DirEntry[str]) -> bool:
    try:
        return item.is_dir()
    except OSError:  # a link in a loop; its name was looked at already
        return False


def _bad_link(folder: Path, name: str) -> str | None:
    """Why a symbolic link is not followed; None if it is."""
    try:
        target = (folder / name).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        return f"is a link that leads nowhere ({reason(error)})"
    home = folder.resolve()
    # The Hugging Face cache keeps snapshots/<revision>/ as links into blobs/ beside it.
    if target.is_relative_to(home) or target.is_relative_to(home.parent.parent / "blobs"):
        return None
    return "is a link to outside the dump; open its target itself if you trust it"


MOST_FILES = 200_000
MOST_DEPTH = 24


class Tree(NamedTuple):
    """The files of a tree, by relative paths with ``/`` in natural order, and what was left out of the listing."""

    files: list[str]
    problems: list[Problem]


def list_tree(at: DumpPath) -> Tree:
    """List every file below a folder, without hidden folders. Too many files or too deep folders are reported."""
    files, problems = list(at.files), list(at.problems)
    waiting = [(name, 1) for name in reversed(at.folders) if not name.startswith(".")]
    while waiting:
        name, depth = waiting.pop()
        if depth > MOST_DEPTH or len(files) > MOST_FILES:
            problems.append(Problem(name, "lies deeper, or beside more files, than is looked at; move it", True))
            continue
        try:
            below = list_folder(at.path / name)
        except NotADump:
            problems.append(Problem(name, "cannot be listed; what it holds is not read", is_unread=True))
            continue
        files += (f"{name}/{file}" for file in below.files)
        problems += (p._replace(file=f"{name}/{p.file}") for p in below.problems)
        waiting += ((f"{name}/{n}", depth + 1) for n in reversed(below.folders) if not n.startswith("."))
    return Tree(sorted(files, key=natural_key), problems)


def unused(tree: Tree, used: Collection[str], looks_like_tensors: Callable[[str], bool]) -> Iterator[Problem]:
    """Report the files of a tree that look like tensors and were not read."""
    for file in tree.files:
        if file not in used and looks_like_tensors(Path(file).name):
            yield Problem(file, "is a tensor file that nothing in the dump names; it is not read", is_unread=True)


def member_path(folder: Path, name: str) -> Path:
    """The path of a file that a dump's own index names; it must lie in the folder."""
    path = folder / name
    if os.sep in name or "\0" in name or name in ("", ".", "..") or (path.is_symlink() and _bad_link(folder, name)):
        raise BadFile(folder, f"its index names {name!r}, which is not a file of this folder")
    return path


class FilePart(NamedTuple):
    """One of the files that together make a dump."""

    file: str
    entries: list[Entry]
    ordered: bool
    problems: list[Problem]
    facts: Mapping[str, object]


def open_parts(at: DumpPath, format_: str, names: list[str], open_part: Callable[[Path], FilePart]) -> Dump:
    """Open the named files of a folder as one dump; raises only if none can be opened."""
    parts: list[FilePart] = []
    errors: list[BadFile] = []
    for name in names:
        try:
            parts.append(open_part(at.path / name))
        except BadFile as error:
            errors.append(error)
    if not parts:
        raise errors[0]
    unread = [Problem(Path(error.path).name, error.problem, is_unread=True) for error in errors]
    return join_parts(at, format_, parts, unread)


def join_parts(at: DumpPath, format_: str, parts: list[FilePart], problems: list[Problem]) -> Dump:
    """Make one dump of several files. Its order is known only if that of each file is."""
    parts = _as_steps(parts)
    entries, duplicates = _first_of_each_name(_named_by_file(parts))
    return Dump(
        path=at.path,
        format=format_,
        entries=entries,
        ordered=all(part.ordered for part in parts),
        problems=(
            *at.problems,
            *problems,
            *(problem for part in parts for problem in part.problems),
            *duplicates,
        ),
        facts={key: value for part in reversed(parts) for key, value in part.facts.items()},
        files=frozenset((*(part.file for part in parts), *(problem.file for problem in problems))),
    )


def name_files(files: Sequence[str], stem: Callable[[str], str]) -> list[tuple[str, str]]:
    """A tensor name for each file: the file's name without its suffix, unless that would not be unique."""
    names = [stem(file) for file in files]
    counts = Counter(names)
    if len(counts) == len(names):
        return list(zip(names, files, strict=True))
    return [(name if counts[name] == 1 else file, file) for name, file in zip(names, files, strict=True)]


def _named_by_file(parts: list[FilePart]) -> list[FilePart]:
    """Name the tensor of each file after the file, if the key in each file names no layer (``data``, ``value``)."""
    keys = {item.name for part in parts for item in part.entries}
    if len(parts) == 1 or not keys <= _NAMELESS or any(len(part.entries) != 1 for part in parts):
        return parts
    names = name_files([part.file for part in parts], lambda file: Path(file).stem)
    return [
        part._replace(entries=[entry(name, part.entries[0].stored)])
        for part, (name, _) in zip(parts, names, strict=True)
    ]


def _as_steps(parts: list[FilePart]) -> list[FilePart]:
    """Make files ``step_0``, ``step_1`` that hold the same names the steps of one run."""
    steps = {part.file: step_of(Path(part.file).stem) for part in parts}
    names = [{item.name for item in part.entries} for part in parts]
    if len(parts) < 2 or None in steps.values() or len(set(steps.values())) != len(parts):
        return parts
    is_said = not any(Path(part.file).stem.isdecimal() for part in parts)  # "1.npz" may be anything
    if not (all(held == names[0] for held in names) or (is_said and all(held & names[0] for held in names))):
        return parts
    in_order = sorted(parts, key=lambda part: steps[part.file] or 0)
    return [part._replace(entries=[e._replace(step=steps[part.file] or 0) for e in part.entries]) for part in in_order]


def _first_of_each_name(parts: list[FilePart]) -> tuple[tuple[Entry, ...], list[Problem]]:
    """Keep the first entry of a name that occurs twice, in one file or in two, and report the other."""
    kept: dict[EntryKey, tuple[Entry, str]] = {}
    duplicates: list[Problem] = []
    for part in parts:
        for item in part.entries:
            first, file = kept.setdefault(item.key, (item, part.file))
            if first is not item:
                why = f"has tensor {item.name!r:.120} {'twice' if file == part.file else f'that {file} has too'}"
                duplicates.append(Problem(part.file, f"{why}; only the first is read", is_unread=True))
    return tuple(item for item, _ in kept.values()), duplicates
