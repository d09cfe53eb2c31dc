"""What lies in a dump's folder, looks like tensors, and was not read.

A reader takes the files of its own format and no others. Whatever else looks like tensors is counted and
named here as a ``Problem`` with ``is_unread``, so that nobody says of the dump that it agrees: a file of
another format, a file that would open under any name, a folder that holds some. What lies beside tensors
in ordinary folders is not mentioned: documents, reports, and in the folder of a Hugging Face checkpoint the
same weights in another format and the state of its training.

Folders are searched by the names in them, without following links; a file is opened only where its name
says nothing.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from tensordiff.dump.files import open_buffer, reason
from tensordiff.dump.folders import DumpPath, list_below
from tensordiff.dump.model import Problem
from tensordiff.dump.names import natural_key
from tensordiff.dump.readers import SUFFIXES, readers
from tensordiff.dump.tree import Tree, list_tree, unused
from tensordiff.errors import BadFile
from tensordiff.util.remote import RemotePath

MOST_LOOKED_AT = 100_000
"""How many names in the folders beside a dump are looked at, at most."""
_SHOWN = 3

_OTHER_TOOLS = (".h5", ".hdf5")
_TENSORS = (*SUFFIXES, *_OTHER_TOOLS)
_PICKLES = (".pkl", ".pickle", ".joblib")
_OF_ARRAYS = re.compile(rb"numpy\._?core|numpy\.ndarray|torch\._utils|torch\.storage|jaxlib|jax\._src")
"""What the beginning of a pickle names, if it holds arrays or tensors."""
_BEGINNING = 1 << 16
_COPIES = re.compile(
    rf"({'|'.join(map(re.escape, SUFFIXES))})(~|\.(gz|xz|zst|bz2|lz4|zip|bak|old|orig|tmp|part|partial|incomplete|\d+))"
)
# Names that say what is in a file, and that it is no tensor: it is not opened to find out.
_NO_TENSORS = frozenset((
    ".txt", ".md", ".rst", ".json", ".jsonl", ".csv", ".tsv", ".toml", ".yaml", ".yml", ".xml", ".log", ".lock",
    ".html", ".css", ".js", ".ts", ".png", ".svg", ".jpg", ".jpeg", ".gif", ".pdf", ".ipynb", ".jinja", ".py",
    ".pyc", ".pyi", ".sh", ".c", ".h", ".cc", ".cpp", ".so", ".model", ".tiktoken", ".onnx", ".tar", ".gz", ".zip",
))  # fmt: skip

_WEIGHTS = re.compile(
    r"(model|adapter_model|diffusion_pytorch_model|consolidated)[^/]*\.safetensors|pytorch_model[^/]*\.bin"
)
_BESIDE_WEIGHTS = re.compile(
    r"pytorch_model.*\.bin|tf_model.*\.h5|flax_model.*\.msgpack|consolidated.*\.pth|.*\.gguf"  # the same, once more
    r"|(optimizer|scheduler|scaler).*\.(pt|bin)|rng_state.*\.pth|training_args\.bin"  # how far training came
    r"|original|onnx|openvino|coreml|gguf|checkpoint-\d+|global_step\d+"
)


def leftovers(at: DumpPath, taken: Collection[str]) -> Iterator[Problem]:
    """The files and folders of a dump's folder that look like tensors and are not among those a reader took."""
    files = [name for name in at.files if name not in taken]
    folders = [name for name in at.folders if name not in taken and not _is_ignored(at.path / name)]
    if (files or folders) and is_checkpoint(at.files, taken):
        files, folders = ([n for n in names if not _BESIDE_WEIGHTS.fullmatch(n)] for names in (files, folders))
    for name in files:
        if why := _why_left(at.path / name):
            yield Problem(name, why, is_unread=True)
    search = _Search(MOST_LOOKED_AT)
    for name in folders:
        yield from search.problems(at.path / name)


def unread_within(at: DumpPath, folders: Collection[str], used: Iterable[Path]) -> list[Problem]:
    """What looks like tensors in folders that a reader took, and is none of the files that it used.

    Also what could not be listed there: links to elsewhere, pipes and devices.
    """
    tree = list_tree(at)
    names = {path.relative_to(at.path).as_posix() for path in used}
    within = Tree(*([item for item in items if _top(item) in folders] for items in tree))  # type: ignore[arg-type]
    return [*within.problems, *unused(within, names, is_named_as_tensors)]


def _top(item: str | Problem) -> str:
    """The folder of a dump that a file lies in; empty for one that lies in none."""
    top, slash, _ = (item if isinstance(item, str) else item.file).partition("/")
    return top if slash or not isinstance(item, str) else ""


def _is_ignored(folder: Path) -> bool:
    """Whether a folder is hidden, or a link: what a link in the dump leads to is seen where it lies."""
    return folder.name.startswith(".") or folder.is_symlink()


def is_checkpoint(files: Collection[str], taken: Collection[str]) -> bool:
    """Whether a folder is that of a Hugging Face checkpoint, of which these weights were read."""
    return any(name.endswith("config.json") for name in files) and any(map(_WEIGHTS.fullmatch, taken))


def _why_left(path: Path) -> str | None:
    """Why a file looks like tensors that were left out; None where it does not."""
    name = path.name.lower()
    if _COPIES.search(name):
        return "is a tensor file that is compressed, unfinished or a copy, and not read; unpack, rename or move it"
    if name.endswith(_OTHER_TOOLS):
        return "is a tensor file of another tool, which is not read; convert it, or move it elsewhere"
    if _holds_arrays(path):
        return "is a pickle of arrays, which is not read, since it may run code; save them with numpy.savez, or move it"
    if _packs_tensors(path):
        return "is an archive with tensor files in it, which is not read; unpack it, or move it elsewhere"
    if is_named_as_tensors(name) or opens_as_tensors(path):
        return "is a tensor file of another format than those that were read; compare it by itself, or move it"
    return None


def is_named_as_tensors(name: str) -> bool:
    """Whether a file's name says that it holds tensors."""
    name = name.lower()
    return name.endswith(_TENSORS) or _COPIES.search(name) is not None


def opens_as_tensors(path: Path) -> bool:
    """Whether a file whose name says nothing would open as a tensor file."""
    if os.path.splitext(path.name.lower())[1] in _NO_TENSORS:  # noqa: PTH122 - pathlib takes ten times as long
        return False
    at = DumpPath(path)
    try:
        _ = at.head
    except BadFile:
        return False  # nothing says that it is a tensor file, so it is not ours to report
    try:
        return any(try_open(at) is not None for try_open in readers())
    except BadFile:
        return True  # it begins as one and is damaged


def _holds_tensors(path: Path) -> bool:
    """Whether a file whose name says nothing holds tensors, which a reader may read or not."""
    return _holds_arrays(path) or _packs_tensors(path) or opens_as_tensors(path)


def _holds_arrays(path: Path) -> bool:
    """Whether a file is a pickle that holds arrays or tensors, by its name and by what its beginning names."""
    if not path.name.lower().endswith(_PICKLES):
        return False
    try:
        return _OF_ARRAYS.search(bytes(open_buffer(path)[:_BEGINNING])) is not None
    except BadFile:
        return False  # nothing says that it holds any


def _packs_tensors(path: Path) -> bool:
    """Whether a file is a zip with tensor files in it; one in a store is not fetched to find out."""
    if not path.name.lower().endswith(".zip") or isinstance(path, RemotePath):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return any(map(is_named_as_tensors, archive.namelist()))
    except (OSError, ValueError, zipfile.BadZipFile):
        return False  # nothing says that it holds any


class _Search:
    """Looks for tensor files in the folders beside a dump, up to a number of names in all."""

    def __init__(self, most: int) -> None:
        self._left = most

    def problems(self, folder: Path) -> Iterator[Problem]:
        """What a folder holds that was not read."""
        unlisted: list[Problem] = []
        if found := sorted(self._files(folder, unlisted), key=natural_key):
            some = ", ".join(found[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
            what = "1 tensor file that was" if len(found) == 1 else f"{len(found):,} tensor files that were"
            why = f"holds {what} not read ({some:.300}); compare the folder by itself, or move it"
            yield Problem(folder.name, why, is_unread=True)
        yield from unlisted
        if self._left <= 0:
            why = f"is one of more than {MOST_LOOKED_AT:,} files and folders beside the dump, too many to be looked at"
            yield Problem(folder.name, f"{why}; move what is no part of it", is_unread=True)

    def _files(self, folder: Path, unlisted: list[Problem]) -> Iterator[str]:
        """Tensor files under a folder, with their paths from the dump."""
        waiting = [(folder, folder.name)]
        while waiting and self._left > 0:
            here, name = waiting.pop()
            if isinstance(here, RemotePath):
                below = list_below(here)
                waiting += ((here / one, f"{name}/{one}") for one in below.folders if not one.startswith("."))
                self._left -= len(below.files) + len(below.folders)
                yield from (f"{name}/{one}" for one in below.files if is_named_as_tensors(one))
                continue
            try:
                with os.scandir(here) as items:
                    for item in items:
                        self._left -= 1
                        if item.is_dir(follow_symlinks=False):
                            if not item.name.startswith("."):
                                waiting.append((here / item.name, f"{name}/{item.name}"))
                        elif is_named_as_tensors(item.name) or (
                            item.is_file(follow_symlinks=False) and _holds_tensors(here / item.name)
                        ):
                            yield f"{name}/{item.name}"
            except OSError as error:
                unlisted.append(Problem(name, f"cannot be listed ({reason(error)}); what it holds is not read", True))
