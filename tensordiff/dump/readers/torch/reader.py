"""Opening files of ``torch.save``: one file of many tensors, or a folder of one tensor a file.

A folder may hold a hundred thousand files, so opening it only lists names; each file is opened when its
entry is asked and released with the array that was read from it. Where a print hook left
``tensor_names.txt``, that is the order of execution. ``.bin`` files of a folder may be anything and count
only if the first of them is torch's.

A tensor is called by the keys that lead to it: ``{"a": {"b": tensor}}`` holds ``a.b``, ``{"a": [tensor,
tensor]}`` holds ``a_0`` and ``a_1``. A pickle may refer to one value many times, so a few bytes can claim
more tensors than a disk could hold: how often values may be shared is bounded here, not how many there are.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from tensordiff.dump.dtypes import Array
from tensordiff.dump.files import map_file
from tensordiff.dump.folders import DumpPath, name_files
from tensordiff.dump.model import Dump, Entry, Problem, Spec, entry
from tensordiff.dump.names import LONGEST_NAME
from tensordiff.dump.readers.torch.archive import Archive, is_legacy, open_archive
from tensordiff.dump.readers.torch.tensors import BadPickle, LongKey, Storage, Tensor, UnreadableTensor, shorten
from tensordiff.dump.zip_files import MEMBER_MAGIC
from tensordiff.errors import BadFile


@dataclass(frozen=True)
class RefusedName(UnreadableTensor):
    """A tensor under a name that no model has."""


Leaf = Tensor | UnreadableTensor
NamedLeaf = tuple[str, Leaf]
_Container = dict[object, object] | list[object] | tuple[object, ...]

_MAX_DEPTH = 64
_MAX_TEXT = 1 << 25
_MAX_SHARING = 16
_ALWAYS_ALLOWED = 1 << 14
_BARE_STORAGE = UnreadableTensor("is a bare storage; save the tensor itself")
_WALKED = (Tensor, UnreadableTensor, Storage, dict, list, tuple)


def name_tensors(content: object, stem: str) -> list[NamedLeaf]:
    """Every tensor a file holds, in the order it was saved; a bare one is called by the file's stem."""
    return list(_Walk(stem).leaves("", _unwrap(content), 0))


def _unwrap(content: object) -> object:
    """SGLang's dumper writes each tensor as a value with notes about it."""
    if not isinstance(content, dict) or content.keys() != {"value", "meta"}:
        return content
    return content["value"]


class _Walk:
    """A bounded walk through the containers of a file."""

    def __init__(self, stem: str) -> None:
        self._stem, self._allowance, self._text = stem, _ALWAYS_ALLOWED, _MAX_TEXT
        self._seen: set[int] = set()

    def leaves(self, name: str, value: object, depth: int) -> Iterator[NamedLeaf]:
        if isinstance(value, Leaf):
            yield name or self._stem, value
        elif isinstance(value, Storage):
            yield name or self._stem, _BARE_STORAGE
        elif isinstance(value, dict | list | tuple):
            self._enter(value, depth)
            for child, below in self._children(name, value):
                if isinstance(child, LongKey):
                    yield f"{child.start}…", RefusedName(f"has a name of {child.length:,} characters")
                    continue
                self._check_length()
                self._text -= len(child)
                yield from self.leaves(child, below, depth + 1)

    def _children(self, name: str, value: _Container) -> Iterator[tuple[str | LongKey, object]]:
        if isinstance(value, dict):
            before = f"{name}." if name else ""
            return ((_joined(before, key), below) for key, below in value.items() if isinstance(below, _WALKED))
        before = f"{name or self._stem}_"
        return ((f"{before}{i}", below) for i, below in enumerate(value) if isinstance(below, _WALKED))

    def _enter(self, value: _Container, depth: int) -> None:
        """Count a container's values against the allowance, which grows with each new container."""
        if id(value) not in self._seen:
            self._seen.add(id(value))
            self._allowance += len(value) * _MAX_SHARING
        self._allowance -= len(value)
        if self._allowance < 0 or depth >= _MAX_DEPTH:
            raise BadPickle("holds values shared too often or nested too deep; save a flat dict of tensors")

    def _check_length(self) -> None:
        if self._text < 0:
            raise BadPickle(f"names its tensors with more than {_MAX_TEXT:,} characters; save under shorter keys")


def _joined(before: str, key: object) -> str | LongKey:
    """A name within containers; one that no model has is not spelled out."""
    if isinstance(key, LongKey):
        return LongKey(f"{before}{key.start}"[:60], len(before) + key.length)
    name = f"{before}{key}"
    return name if len(name) <= LONGEST_NAME else LongKey.of(name)


_TORCH_SUFFIXES = (".pt", ".pth")
_SHARED_SUFFIXES = (".bin", ".ckpt")
_NAMES = "tensor_names.txt"
_MAX_NAMES_BYTES = 1 << 26
_HEAD_BYTES = 1024  # the first member's header, with the longest name a file system allows
_MANGLED = re.compile(r'[\\/:*?"<>| \x00-\x1f]')


def try_open(at: DumpPath) -> Dump | None:
    """Open a torch file or a folder of them."""
    return _open_folder(at) if at.is_folder else _open_lone_file(at)


def _open_lone_file(at: DumpPath) -> Dump | None:
    is_torch = at.path.name.lower().endswith(_TORCH_SUFFIXES) or _is_torch(at.path)
    return _open_file(at.path) if is_torch else None


def _open_folder(at: DumpPath) -> Dump | None:
    files = _torch_files(at)
    if not files:
        return None
    if _NAMES in at.files:
        return _open_hooked(at, files)
    return (len(files) == 1 and _open_only_file(at, files[0])) or _open_flat(at, files)


def _torch_files(at: DumpPath) -> list[str]:
    unsure = at.with_suffix(*_SHARED_SUFFIXES)
    kinds = _TORCH_SUFFIXES + _SHARED_SUFFIXES if unsure and _is_torch(at.path / unsure[0]) else _TORCH_SUFFIXES
    return at.with_suffix(*kinds)


def _is_torch(path: Path) -> bool:
    """Whether a file that could be anything starts as a torch file does."""
    try:
        head = map_file(path)[:_HEAD_BYTES]
    except BadFile:
        return False  # nothing says that it is a torch file, so it is not ours to report
    return is_legacy(head) or (head[:4] == MEMBER_MAGIC and b"/data.pkl" in head)


def _open_flat(at: DumpPath, files: list[str]) -> Dump:
    """A folder of files in no known order. Two files of one stem keep their suffixes."""
    folder = str(at.path)
    entries = tuple(_file_entry(folder, file, name) for name, file in name_files(files, _stem))
    return Dump(at.path, "torch", entries, ordered=False, problems=at.problems, files=frozenset(files))


def _open_hooked(at: DumpPath, files: list[str]) -> Dump:
    """A folder in the order of the names that a print hook wrote; files it does not name come last."""
    counts = Counter(_read_names(at.path / _NAMES))
    pairs = _pair_names(list(counts), files)
    taken = set(pairs.values())
    others = name_files([file for file in files if file not in taken], _stem)
    rest = [(file if name in pairs else name, file) for name, file in others]
    entries = tuple(_file_entry(str(at.path), file, name) for name, file in (*pairs.items(), *rest))
    problems = (*at.problems, *_name_problems(counts, pairs))
    return Dump(at.path, "torch-hook", entries, ordered=True, problems=problems, files=frozenset(files))


def _read_names(path: Path) -> list[str]:
    text = map_file(path)
    if len(text) > _MAX_NAMES_BYTES:
        raise BadFile(path, f"has {len(text)} bytes, more than any list of names; is it another file?")
    return [line.rstrip("\r") for line in os.fsdecode(bytes(text)).split("\n") if line.strip()]


def _pair_names(names: list[str], files: list[str]) -> dict[str, str]:
    """The file of each name: the one of that stem, or else the one whose stem is the name with characters replaced."""
    own = {_stem(file): file for file in reversed(files)}
    named = set(names)
    left = {_mangle(stem): file for stem, file in own.items() if stem not in named}
    pairs = ((name, own.get(name) or left.pop(_mangle(name), None)) for name in names)
    return {name: file for name, file in pairs if file}


def _name_problems(counts: Counter[str], pairs: dict[str, str]) -> Iterator[Problem]:
    for name, count in counts.items():
        if name not in pairs:
            yield Problem(f"{shorten(name)}.pt", f"is named in {_NAMES} but has no file of its own", is_unread=True)
        elif count > 1:
            yield Problem(pairs[name], f"is named {count} times in {_NAMES} and can hold only one of them")


def _mangle(name: str) -> str:
    return _MANGLED.sub("_", name)


def _stem(file: str) -> str:
    stem, dot, suffix = file.rpartition(".")
    return stem if stem and f"{dot}{suffix.lower()}" in _TORCH_SUFFIXES + _SHARED_SUFFIXES else file


def _file_entry(folder: str, file: str, name: str) -> Entry:
    return entry(name, TorchFile(folder, file))


@dataclass(frozen=True)
class TorchFile:
    """The one tensor of a file, which is opened each time it is asked for."""

    folder: str
    file: str

    @cached_property
    def spec(self) -> Spec:
        """Shape and dtype, from the file's pickle."""
        return self._open()[1].spec

    def read(self) -> Array:
        """The values; the mapping of the file goes with them."""
        archive, tensor = self._open()
        return archive.read(tensor)

    def _open(self) -> tuple[Archive, Tensor]:
        archive = open_archive(f"{self.folder}{os.sep}{self.file}")
        if isinstance(archive.value, Tensor):
            return archive, archive.value
        tensors = _name_tensors(archive, _stem(self.file))
        if len(tensors) > 1:
            some = ", ".join(shorten(name) for name, _ in tensors[:3])
            raise BadFile(archive.path, f"holds {len(tensors)} tensors ({some}, …); open that file on its own")
        return archive, _readable(archive, *tensors[0])


def _open_file(path: Path) -> Dump:
    """One file, its tensors in the order they were put in."""
    archive = open_archive(path)
    kept: dict[str, Entry] = {}
    problems: list[Problem] = []
    for name, leaf in _name_tensors(archive, _stem(path.name)):
        if isinstance(leaf, RefusedName):
            why = f"its tensor {shorten(name)!r} {leaf.sentence}; it is left out"
            problems.append(Problem(path.name, why, is_unread=True))
        elif name in kept:
            why = f"has two tensors named {shorten(name)!r}; the first is kept"
            problems.append(Problem(path.name, why, is_unread=True))
        else:
            kept[name] = entry(name, _InArchive(archive, name, leaf))
    return Dump(path, "torch", tuple(kept.values()), ordered=True, problems=tuple(problems))


def _open_only_file(at: DumpPath, file: str) -> Dump | None:
    """A folder's only file, if it holds several tensors."""
    try:
        dump = _open_file(at.path / file)
    except BadFile:
        return None  # reported when the entry is asked
    if len(dump) == 1:
        return None
    return replace(dump, path=at.path, problems=at.problems + dump.problems, files=frozenset((file,)))


class _InArchive(NamedTuple):
    """One tensor of a file that stays mapped."""

    archive: Archive
    name: str
    leaf: Leaf

    @property
    def spec(self) -> Spec:
        """Shape and dtype."""
        return _readable(*self).spec

    def read(self) -> Array:
        """The values, mapped."""
        return self.archive.read(_readable(*self))


def _name_tensors(archive: Archive, stem: str) -> list[NamedLeaf]:
    try:
        tensors = name_tensors(archive.value, stem)
    except BadPickle as error:
        raise BadFile(archive.path, str(error)) from error
    if not tensors:
        raise BadFile(archive.path, "holds no tensor; was something else saved under this name?")
    return tensors


def _readable(archive: Archive, name: str, leaf: Leaf) -> Tensor:
    if isinstance(leaf, UnreadableTensor):
        raise BadFile(archive.path, f"its tensor {shorten(name)!r} {leaf.sentence}")
    return leaf
