"""Opening files of ``torch.save``: one file of many tensors, or a folder with one tensor per file.

A folder may hold a hundred thousand files, so opening it only lists names; each file is opened when its entry is used
and released with the array that was read from it. If a print hook wrote ``tensor_names.txt``, that is the execution
order. ``.bin`` files of a folder may be anything and count only if the first of them is torch's. How tensors within a
file are named is decided in ``walk``.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from tensordiff.dump.dtypes import Array
from tensordiff.dump.files import Buffer, map_file, open_buffer
from tensordiff.dump.folders import DumpPath, FilePart, name_files, open_parts
from tensordiff.dump.model import Dump, Entry, Problem, Spec, entry
from tensordiff.dump.names import shared_wrapper
from tensordiff.dump.ranks.joined_tensor import JoinedRanks, RankPart
from tensordiff.dump.ranks.ranks import join_ranks
from tensordiff.dump.readers.torch.archive import Archive, is_legacy, open_archive, open_archive_bytes
from tensordiff.dump.readers.torch.layouts import Layouts
from tensordiff.dump.readers.torch.numpy_values import PickledArray
from tensordiff.dump.readers.torch.tensors import BadPickle, Tensor, UnreadableTensor, shorten
from tensordiff.dump.readers.torch.walk import Found, RefusedName, find_tensors, port_of_key
from tensordiff.dump.zip_files import MEMBER_MAGIC
from tensordiff.errors import BadFile

_TORCH_SUFFIXES = (".pt", ".pth")
_SHARED_SUFFIXES = (".bin", ".ckpt")
_SUFFIXES = _TORCH_SUFFIXES + _SHARED_SUFFIXES
_ENDINGS = frozenset(suffix[1:] for suffix in _SUFFIXES)
_NAMES = "tensor_names.txt"
_MAX_NAMES_BYTES = 1 << 26
_HEAD_BYTES = 1024  # the first member's header, with the longest name a file system allows
_RANK = re.compile(r"^(?:tp_?)?rank_?(\d{1,6})\.(?=.)", re.IGNORECASE)
_MANGLED = re.compile(r'[\\/:*?"<>| \x00-\x1f]')


def try_open(at: DumpPath) -> Dump | None:
    """Open a torch file or a folder of them."""
    return _open_folder(at) if at.is_folder else _open_lone_file(at)


def _open_lone_file(at: DumpPath) -> Dump | None:
    is_torch = at.path.name.lower().endswith(_TORCH_SUFFIXES) or _is_torch(at.path)
    return _open_lone(at.path) if is_torch else None


def _open_folder(at: DumpPath) -> Dump | None:
    files = _torch_files(at)
    if not files:
        return None
    if _NAMES in at.files:
        return _open_hooked(at, files)
    return _open_many(at, files) if _hold_several(at, files) else _open_flat(at, files)


def _hold_several(at: DumpPath, files: list[str]) -> bool:
    """Whether files hold several tensors each. Only a few are looked at: a folder may hold a hundred thousand."""
    for file in dict.fromkeys((files[0], files[len(files) // 2], files[-1])):
        try:
            if len(found_in(open_archive(at.path / file), _stem(file))) > 1:
                return True
        except BadFile:  # reported when the entry is read
            continue
    return False


def _open_many(at: DumpPath, files: list[str]) -> Dump:
    """A folder of files with several tensors each. If two files share names, each name begins with the file's."""
    dump = open_parts(at, "torch", files, open_file)
    if not any("only the first is read" in p.sentence for p in dump.problems):
        are_steps = any(item.step for item in dump.entries)
        return replace(dump, ordered=dump.ordered and (are_steps or len(files) == 1))
    return open_parts(at, "torch", files, lambda path: _under_file(open_file(path), _stem(path.name)))


def _under_file(part: FilePart, stem: str) -> FilePart:
    """The same with names and layers prefixed by the file's; a port beside layers is the file's own."""
    return part._replace(
        entries=[e._replace(name=f"{stem}.{e.name}", **_place_under(e, stem)) for e in part.entries],
        ordered=False,
    )


def _place_under(item: Entry, stem: str) -> dict[str, Any]:
    port = port_of_key(item.layer) if item.port == "output" else None
    return {"layer": stem, "port": port} if port else {"layer": f"{stem}.{item.layer}"}


def _torch_files(at: DumpPath) -> list[str]:
    unsure = at.with_suffix(*_SHARED_SUFFIXES)
    kinds = _SUFFIXES if unsure and _is_torch(at.path / unsure[0]) else _TORCH_SUFFIXES
    return at.with_suffix(*kinds)


def _is_torch(path: Path) -> bool:
    """Whether a file that could be anything starts like a torch file."""
    try:
        head = open_buffer(path)[:_HEAD_BYTES]
    except BadFile:
        return False  # nothing says that it is a torch file, so it is not reported
    return is_legacy(head) or (head[:4] == MEMBER_MAGIC and b"/data.pkl" in head)


def _open_flat(at: DumpPath, files: list[str]) -> Dump:
    """A folder of files in no known order. Two files with one stem keep their suffixes."""
    folder = str(at.path)
    entries = tuple([_file_entry(folder, file, name) for name, file in name_files(files, _stem)])
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
    """The file of each name: the one with that stem, otherwise the one whose stem is the mangled name."""
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
    stem, _, suffix = file.rpartition(".")
    return stem if stem and suffix.lower() in _ENDINGS else file


def _file_entry(folder: str, file: str, name: str) -> Entry:
    return entry(name, TorchFile(folder, file))


_layouts = Layouts()
_SEP = os.sep


@dataclass(unsafe_hash=True)
class TorchFile:
    """The one tensor of a file, which is opened each time it is used.

    It is not frozen: a frozen one takes twice as long to make, and a folder may hold a hundred thousand.
    """

    folder: str
    file: str

    @cached_property
    def spec(self) -> Spec:
        """Shape and dtype, from the file's pickle."""
        buffer = open_buffer(self._path)
        layout = _layouts.find(buffer)
        return self._open(buffer)[1].spec if layout is None else layout.spec

    def read(self) -> Array:
        """The values; the mapping of the file is released with them."""
        path = f"{self.folder}{_SEP}{self.file}"
        buffer = open_buffer(path)
        layout = _layouts.find(buffer)
        if layout is not None:
            return layout.values(buffer, path)
        archive, tensor = self._open(buffer)
        values = archive.read(tensor)
        archive.teach(_layouts)
        return values

    @property
    def _path(self) -> str:
        return f"{self.folder}{_SEP}{self.file}"

    def _open(self, buffer: Buffer) -> tuple[Archive, Tensor | PickledArray]:
        archive = open_archive_bytes(self._path, buffer)
        if isinstance(archive.value, Tensor):
            return archive, archive.value
        tensors = found_in(archive, _stem(self.file))
        if len(tensors) > 1:
            some = ", ".join(shorten(item.name) for item in tensors[:3])
            raise BadFile(archive.path, f"holds {len(tensors)} tensors ({some}, …); open that file on its own")
        return archive, _readable(archive, tensors[0])


def open_file(path: Path) -> FilePart:
    """One file, its tensors in the order they were added."""
    archive = open_archive(path)
    kept: dict[tuple[str, int], Entry] = {}
    problems: list[Problem] = []
    skipped_lists: list[str] = []
    for item in found_in(archive, _stem(path.name), skipped_lists):
        if isinstance(item.leaf, RefusedName):
            why = f"its tensor {shorten(item.name)!r} {item.leaf.sentence}; it is left out"
            problems.append(Problem(path.name, why, is_unread=True))
        elif (item.name, item.step) in kept:
            why = f"has two tensors named {shorten(item.name)!r}; the first is kept"
            problems.append(Problem(path.name, why, is_unread=True))
        else:
            kept[item.name, item.step] = _found_entry(archive, item)
    problems += _skipped_list_problems(path.name, skipped_lists)
    wrapper = shared_wrapper(item.layer for item in kept.values())
    entries = [item._replace(layer=item.layer.removeprefix(wrapper)) for item in kept.values()]
    return FilePart(path.name, entries, True, problems, {})


def _skipped_list_problems(file: str, names: list[str]) -> Iterator[Problem]:
    """Report lists of numbers that were taken for settings.

    No tensor counts as left out: files of training runs are full of such lists.
    """
    if names:
        some = ", ".join(map(shorten, names[:3])) + (", …" if len(names) > 3 else "")
        what = f"has lists of numbers that are named as settings or histories are, and are not compared ({some})"
        yield Problem(file, f"{what}; save what is a tensor as one")


def _found_entry(archive: Archive, item: Found) -> Entry:
    stored = InArchive(archive, item)
    if item.layer is None:
        return entry(item.name, stored, item.step)
    return Entry(item.name, item.layer, item.port, 1, item.step, stored)


def _open_lone(path: Path) -> Dump:
    part = open_file(path)
    problems = (*part.problems, *filter(None, map(partial_dtensor_problem, part.entries)))
    ranks = [_rank_part(item) for item in part.entries]
    if None not in ranks and len({one.rank for one in ranks if one is not None}) > 1:
        joined = join_ranks(one for one in ranks if one is not None)
        return Dump(path, "torch", joined.entries, ordered=True, problems=(*problems, *joined.problems))
    return Dump(path, "torch", tuple(part.entries), ordered=True, problems=problems)


def _rank_part(item: Entry) -> RankPart | None:
    """What one rank holds, if the outermost keys are ranks: ``{"rank0": {…}, "rank1": {…}}``."""
    match = _RANK.match(item.name)
    if match is None or not item.layer.startswith(match[0]):
        return None
    return RankPart(int(match[1]), item._replace(name=item.name[match.end() :], layer=item.layer[match.end() :]))


def partial_dtensor_problem(item: Entry) -> Problem | None:
    """Report an entry that is not a whole tensor, but what some ranks hold of a DTensor."""
    first: object = item.stored
    while isinstance(first, JoinedRanks):
        first = first.parts[0]
    placement = first.found.placement if isinstance(first, InArchive) else None
    try:
        if placement is None or item.spec.shape == placement.whole:
            return None
    except BadFile:
        return None  # reported when it is read
    shapes = f"{list(item.spec.shape)} of {list(placement.whole)}"
    return Problem(item.name, f"is a part of a DTensor, {shapes}; open the folder that holds all ranks", is_unread=True)


class InArchive(NamedTuple):
    """One tensor of a file that stays mapped."""

    archive: Archive
    found: Found

    @property
    def spec(self) -> Spec:
        """Shape and dtype."""
        return _readable(self.archive, self.found).spec

    def read(self) -> Array:
        """The values, mapped."""
        return self.archive.read(_readable(self.archive, self.found))


def tensor_of(archive: Archive, stem: str) -> Array:
    """The values of an archive that holds one tensor."""
    tensors = found_in(archive, stem)
    if len(tensors) != 1:
        raise BadFile(archive.path, f"holds {len(tensors)} tensors where one is expected; save it again")
    return archive.read(_readable(archive, tensors[0]))


def found_in(archive: Archive, stem: str, skipped_lists: list[str] | None = None) -> list[Found]:
    """The tensors of an archive, at least one.

    Names of lists of numbers that are not taken for tensors are added to ``skipped_lists``.
    """
    try:
        tensors = find_tensors(_unwrap(archive.value), stem, skipped_lists)
    except BadPickle as error:
        raise BadFile(archive.path, str(error)) from error
    if not tensors:
        raise BadFile(archive.path, "holds no tensor; was something else saved under this name?")
    return tensors


def _unwrap(content: object) -> object:
    """Unwrap a tensor of SGLang's dumper, which writes each as a value with notes about it."""
    if not isinstance(content, dict) or content.keys() != {"value", "meta"}:
        return content
    return content["value"]


def _readable(archive: Archive, item: Found) -> Tensor | PickledArray:
    leaf = item.leaf
    sentence = leaf.sentence if isinstance(leaf, UnreadableTensor | PickledArray) else ""
    if isinstance(leaf, UnreadableTensor) or sentence:
        raise BadFile(archive.path, f"its tensor {shorten(item.name)!r} {sentence}")
    return leaf
