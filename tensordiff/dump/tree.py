"""The files under a dump's folder at any depth, for tools that write folders of folders.

Links are followed only within the dump, as everywhere; hidden folders are let be. A reader that reads a tree
says which files it used, and ``unused`` names what else in it looks like tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from tensordiff.dump.folders import DumpPath, list_folder
from tensordiff.dump.model import Problem
from tensordiff.dump.names import natural_key
from tensordiff.errors import NotADump

MOST_FILES = 200_000
MOST_DEPTH = 24


class Tree(NamedTuple):
    """Paths of files relative to the dump, with ``/``, in natural order, and what was left out of the listing."""

    files: list[str]
    problems: list[Problem]


def list_tree(at: DumpPath) -> Tree:
    """Every file under a folder. What is too many or too deep is named."""
    files, problems = list(at.files), list(at.problems)
    waiting = [(name, 1) for name in reversed(at.folders) if not name.startswith(".")]
    while waiting:
        name, depth = waiting.pop()
        if depth > MOST_DEPTH or len(files) > MOST_FILES:
            problems.append(Problem(name, "lies deeper, or beside more files, than is looked at; move it", True))
            continue
        try:
            found = list_folder(at.path / name)
        except NotADump:
            problems.append(Problem(name, "cannot be listed; what it holds is not read", is_unread=True))
            continue
        files += (f"{name}/{file}" for file in found.files)
        problems += (p._replace(file=f"{name}/{p.file}") for p in found.problems)
        waiting += ((f"{name}/{n}", depth + 1) for n in reversed(found.folders) if not n.startswith("."))
    return Tree(sorted(files, key=natural_key), problems)


def unused(tree: Tree, used: Collection[str], looks_like_tensors: Callable[[str], bool]) -> Iterator[Problem]:
    """What looks like tensors in a tree and was not read."""
    for file in tree.files:
        if file not in used and looks_like_tensors(Path(file).name):
            yield Problem(file, "is a tensor file that nothing in the dump names; it is not read", is_unread=True)
