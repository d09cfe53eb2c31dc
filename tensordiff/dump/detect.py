"""Finding out what lies at a path, by looking and never by asking.

A reader is one module with one function: it is shown what was ``DumpPath`` at the path and either
answers with a ``Dump`` or says ``None``, not mine. ``READERS`` lists them, most particular first; a
new format is one module and one line here. A folder of folders ``0``, ``1``, … is one dump a step.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tensordiff.dump.files import list_files, map_file
from tensordiff.dump.model import Dump, Problem
from tensordiff.dump.names import natural_key
from tensordiff.errors import NotADump, printable


@dataclass(frozen=True)
class DumpPath:
    """What lies at a path: one look, shared by all readers."""

    path: Path

    @cached_property
    def is_folder(self) -> bool:
        """Whether the path is a folder."""
        return self.path.is_dir()

    @cached_property
    def _listing(self) -> tuple[list[str], list[Problem]]:
        return list_files(self.path) if self.is_folder else ([], [])

    @property
    def files(self) -> list[str]:
        """Names of a folder's files in natural order; none where the path is a file."""
        return self._listing[0]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What a folder holds that was left out."""
        return tuple(self._listing[1])

    def named(self, *suffixes: str) -> list[str]:
        """The folder's files with one of these suffixes, in natural order."""
        return [name for name in self.files if name.lower().endswith(suffixes)]

    @cached_property
    def head(self) -> bytes:
        """The first bytes of a file, by which formats are told apart."""
        return b"" if self.is_folder else map_file(self.path)[:64]


Reader = Callable[[DumpPath], Dump | None]


def readers() -> tuple[Reader, ...]:
    """Every format, most particular first."""
    from tensordiff.dump.readers import max as max_files
    from tensordiff.dump.readers import native, verify_layers
    from tensordiff.dump.readers import npy as numpy_files
    from tensordiff.dump.readers import safetensors as safetensors_files
    from tensordiff.dump.readers.torch import reader as torch_files

    return (
        native.look,
        verify_layers.look,
        safetensors_files.look,
        torch_files.look,
        max_files.look,
        numpy_files.look,
    )


def open_dump(path: str | os.PathLike[str]) -> Dump:
    """Open whatever dump lies at a path. Touches headers at most."""
    try:
        return _open(DumpPath(Path(path)), path)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise NotADump(f"{printable(path)}: cannot be opened ({why}); check the path and who may read it") from error


def _open(found: DumpPath, path: str | os.PathLike[str]) -> Dump:
    if not found.path.exists():
        raise NotADump(f"{printable(path)}: no such file or folder; check the path")
    dump = _ask_readers(found)
    if dump is None and (dump := _steps(found)) is None:
        raise NotADump(f"{printable(path)}: {_why_not(found)}")
    return dump


def _ask_readers(found: DumpPath) -> Dump | None:
    return next((dump for reader in readers() if (dump := reader(found)) is not None), None)


def _steps(found: DumpPath) -> Dump | None:
    """Folders named by number, each a dump of one format, are the steps of one run."""
    if not found.is_folder:
        return None
    steps, twins = _step_folders(found)
    dumps = {step: _ask_readers(DumpPath(found.path / name)) for step, name in steps.items()}
    parts = {step: dump for step, dump in dumps.items() if dump is not None}
    if not parts:
        return None
    first = next(iter(parts.values()))
    nothing = "holds no tensors we know, though the other steps do; capture it again, or remove it"
    unknown = tuple(Problem(name, nothing, is_unread=True) for step, name in steps.items() if step not in parts)
    return replace(
        first,
        path=found.path,
        entries=tuple(e._replace(step=step) for step, dump in parts.items() for e in dump.entries),
        ordered=all(dump.ordered for dump in parts.values()),
        interrupted=any(dump.interrupted for dump in parts.values()),
        problems=found.problems
        + twins
        + unknown
        + tuple(p._replace(file=f"{steps[step]}/{p.file}") for step, dump in parts.items() for p in dump.problems),
    )


def _step_folders(found: DumpPath) -> tuple[dict[int, str], tuple[Problem, ...]]:
    """Step numbers and their folders, and folders left out because another is that step; links out count as none."""
    out = {problem.file for problem in found.problems}
    names = [p.name for p in found.path.iterdir() if p.name.isdecimal() and p.is_dir() and p.name not in out]
    steps: dict[int, str] = {}
    for name in sorted(names, key=lambda name: (natural_key(name), name)):
        steps.setdefault(int(name), name)
    twins = sorted(set(names) - set(steps.values()))
    why = "is left out: {} is step {} too"
    return steps, tuple(Problem(name, why.format(steps[int(name)], int(name)), is_unread=True) for name in twins)


def _why_not(found: DumpPath) -> str:
    if not found.is_folder:
        return "is not a tensor file we know (.safetensors, .pt, .max, .npy, .npz)"
    inside = sorted(p.name for p in found.path.iterdir() if p.is_dir())[:3]
    if not found.files and not inside:
        return "is an empty folder; was the dump written somewhere else?"
    hint = f"; did you mean {printable(found.path / inside[0])}?" if inside else ""
    return f"holds no tensors we know (.safetensors, .pt, .max, .npy, .npz){hint}"
