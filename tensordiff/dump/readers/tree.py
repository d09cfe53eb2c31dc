"""A tree of folders with one tensor per file: ``layers/0/mlp.npy`` beside ``layers/0/mlp/down_proj.npy``.

A tensor is named by the path that leads to its file, with dots. There is no execution order.
"""

from __future__ import annotations

from tensordiff.dump.folders import RANK_FOLDER, DumpPath, list_tree, unused
from tensordiff.dump.leftovers import is_named_as_tensors
from tensordiff.dump.model import Dump, Entry, StoredTensor, entry
from tensordiff.dump.readers import Format
from tensordiff.dump.readers.npy import NpyFile
from tensordiff.dump.readers.torch.reader import TorchFile
from tensordiff.dump.readers.torch.walk import port_of_key
from tensordiff.errors import BadFile

FORMAT = "tree"
FORMATS = (
    Format(
        FORMAT,
        "a tree of folders with one tensor per file",
        "`.npy` or `.pt` files in folders of folders, if nothing else knows them",
        "none",
    ),
)

_SUFFIXES = (".npy", ".pt", ".pth")


def try_open(at: DumpPath) -> Dump | None:
    """Open a folder whose tensor files are all of one kind, some of them in subfolders."""
    if not at.is_folder or not any(not name.startswith(".") for name in at.folders) or _are_steps(at):
        return None
    if any(is_named_as_tensors(name) and not _suffix(name) for name in at.files):
        return None  # files of another kind at the top: no need to look below
    tree = list_tree(at)
    tensors = [file for file in tree.files if is_named_as_tensors(file.rpartition("/")[2])]
    kinds = {suffix for file in tensors for suffix in [_suffix(file)]}
    if len(kinds) != 1 or not (kinds <= set(_SUFFIXES)) or not any("/" in file for file in tensors):
        return None
    (suffix,) = kinds
    if suffix != ".npy" and not _is_one_tensor(at, tensors[0]):
        return None
    entries = _entries(at, tensors, suffix)
    problems = (*tree.problems, *unused(tree, set(tensors), is_named_as_tensors))
    taken = {file.partition("/")[0] for file in tensors}
    return Dump(at.path, FORMAT, entries, ordered=False, problems=problems, files=frozenset(taken))


def _are_steps(at: DumpPath) -> bool:
    """Whether folders are numbered, as steps or as ranks of one run."""
    return at.has_steps or any(RANK_FOLDER.fullmatch(name) for name in at.folders)


def _suffix(file: str) -> str:
    return next((suffix for suffix in _SUFFIXES if file.lower().endswith(suffix)), "")


def _is_one_tensor(at: DumpPath, file: str) -> bool:
    folder, _, name = file.rpartition("/")
    try:
        _ = TorchFile(str(at.path / folder), name).spec
    except BadFile:
        return False
    return True


def _entries(at: DumpPath, files: list[str], suffix: str) -> tuple[Entry, ...]:
    ports = {file: port_of_key(file.rpartition("/")[2][: -len(suffix)]) for file in files}
    are_ports = None not in ports.values()  # then a folder is a layer, and its files are inputs and outputs
    entries = []
    for file in files:
        folder, _, name = file.rpartition("/")
        stored: StoredTensor = (
            NpyFile(at.path / file)
            if suffix == ".npy"
            else TorchFile(str(at.path / folder) if folder else str(at.path), name)
        )
        name, port = file[: -len(suffix)].replace("/", "."), ports[file]
        item = entry(name, stored)
        entries.append(item._replace(layer=folder.replace("/", "."), port=port) if are_ports and port else item)
    return tuple(entries)
