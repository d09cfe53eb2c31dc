"""What was left out of a dump: files in its folder that look like tensors and were not read.

A reader takes the files of its own format and no others. Whatever else looks like tensors is counted and reported here
as a ``Problem`` with ``is_unread``, so that the dump is never said to agree: a file of another format, a file that
would open under any name, a folder that holds some. What usually lies beside tensors is not reported: documents and
reports, and in the folder of a Hugging Face checkpoint the same weights in another format and the training state.

Folders are searched by file names, without following links; a file is opened only if its name says nothing.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from tensordiff.dump.files import open_buffer, reason
from tensordiff.dump.folders import DumpPath, Tree, list_below, list_tree, unused
from tensordiff.dump.model import Problem
from tensordiff.dump.names import natural_key
from tensordiff.dump.readers import SUFFIXES, readers
from tensordiff.errors import BadFile
from tensordiff.util.remote import RemotePath

MOST_LOOKED_AT = 100_000
"""How many names in the folders beside a dump are looked at, at most."""
_SHOWN = 3

_OTHER_TOOLS = (".h5", ".hdf5")
_TENSOR_SUFFIXES = (*SUFFIXES, *_OTHER_TOOLS)
_PICKLES = (".pkl", ".pickle", ".joblib")
_ARRAY_MODULES = re.compile(rb"numpy\._?core|numpy\.ndarray|torch\._utils|torch\.storage|jaxlib|jax\._src")
"""Modules that the beginning of a pickle names if it holds arrays or tensors."""
_BEGINNING = 1 << 16
_COPY_SUFFIX = re.compile(
    rf"({'|'.join(map(re.escape, SUFFIXES))})(~|\.(gz|xz|zst|bz2|lz4|zip|bak|old|orig|tmp|part|partial|incomplete|\d+))"
)
# Suffixes of files that hold no tensors, so that they need not be opened to find out.
_SUFFIXES_WITHOUT_TENSORS = frozenset((
    ".txt", ".md", ".rst", ".json", ".jsonl", ".csv", ".tsv", ".toml", ".yaml", ".yml", ".xml", ".log", ".lock",
    ".html", ".css", ".js", ".ts", ".png", ".svg", ".jpg", ".jpeg", ".gif", ".pdf", ".ipynb", ".jinja", ".py",
    ".pyc", ".pyi", ".sh", ".c", ".h", ".cc", ".cpp", ".so", ".model", ".tiktoken", ".onnx", ".tar", ".gz", ".zip",
))  # fmt: skip

_WEIGHT_FILE = re.compile(
    r"(model|adapter_model|diffusion_pytorch_model|consolidated)[^/]*\.safetensors|pytorch_model[^/]*\.bin"
)
_BESIDE_CHECKPOINT = re.compile(
    r"pytorch_model.*\.bin|tf_model.*\.h5|flax_model.*\.msgpack|consolidated.*\.pth|.*\.gguf"  # the same, once more
    r"|(optimizer|scheduler|scaler).*\.(pt|bin)|rng_state.*\.pth|training_args\.bin"  # how far training came
    r"|original|onnx|openvino|coreml|gguf|checkpoint-\d+|global_step\d+"
)


def leftovers(at: DumpPath, taken: Collection[str]) -> Iterator[Problem]:
    """Report the files and folders of a dump's folder that look like tensors and that no reader took."""
    files = [name for name in at.files if name not in taken]
    folders = [name for name in at.folders if name not in taken and not _is_ignored(at.path / name)]
    if (files or folders) and is_checkpoint(at.files, taken):
        files, folders = ([n for n in names if not _BESIDE_CHECKPOINT.fullmatch(n)] for names in (files, folders))
    for name in files:
        if why := _why_left(at.path / name):
            yield Problem(name, why, is_unread=True)
    search = _Search(MOST_LOOKED_AT)
    for name in folders:
        yield from search.problems(at.path / name)


def unread_within(at: DumpPath, folders: Collection[str], used: Iterable[Path]) -> list[Problem]:
    """Report what looks like tensors in folders that a reader took, but is none of the files that it used.

    Also reports what could not be listed there: links that lead out of the dump, pipes and devices.
    """
    tree = list_tree(at)
    names = {path.relative_to(at.path).as_posix() for path in used}
    below = Tree(*([item for item in items if _top_folder(item) in folders] for items in tree))  # type: ignore[arg-type]
    return [*below.problems, *unused(below, names, is_named_as_tensors)]


def _top_folder(item: str | Problem) -> str:
    """The first folder of a relative path; empty for a file at the top."""
    top, slash, _ = (item if isinstance(item, str) else item.file).partition("/")
    return top if slash or not isinstance(item, str) else ""


def _is_ignored(folder: Path) -> bool:
    """Whether a folder is hidden, or a link: what a link within the dump leads to is found where it lies."""
    return folder.name.startswith(".") or folder.is_symlink()


def is_checkpoint(files: Collection[str], taken: Collection[str]) -> bool:
    """Whether a folder is a Hugging Face checkpoint whose weights were read."""
    return any(name.endswith("config.json") for name in files) and any(map(_WEIGHT_FILE.fullmatch, taken))


def _why_left(path: Path) -> str | None:
    """Why a file looks like tensors that were left out; None if it does not."""
    name = path.name.lower()
    if _COPY_SUFFIX.search(name):
        return "is a tensor file that is compressed, unfinished or a copy, and not read; unpack, rename or move it"
    if name.endswith(_OTHER_TOOLS):
        return "is a tensor file of another tool, which is not read; convert it, or move it elsewhere"
    if is_named_as_tensors(name) or opens_as_tensors(path):
        return "is a tensor file of another format than those that were read; compare it by itself, or move it"
    if _holds_arrays(path):
        return "is a pickle of arrays, which is not read, since it may run code; save them with numpy.savez, or move it"
    if _packs_tensors(path):
        return "is an archive with tensor files in it, which is not read; unpack it, or move it elsewhere"
    return None


def is_named_as_tensors(name: str) -> bool:
    """Whether a file's name says that it holds tensors."""
    name = name.lower()
    return name.endswith(_TENSOR_SUFFIXES) or _COPY_SUFFIX.search(name) is not None


def opens_as_tensors(path: Path) -> bool:
    """Whether a file whose name says nothing would open as a tensor file."""
    if os.path.splitext(path.name.lower())[1] in _SUFFIXES_WITHOUT_TENSORS:  # noqa: PTH122 - pathlib takes ten times as long
        return False
    at = DumpPath(path)
    try:
        _ = at.head
    except BadFile:
        return False  # nothing says that it is a tensor file, so it is not reported
    try:
        return any(try_open(at) is not None for try_open in readers())
    except BadFile:
        return True  # it begins like one and is damaged


def _holds_tensors(path: Path) -> bool:
    """Whether a file whose name says nothing holds tensors, which a reader may read or not."""
    return _holds_arrays(path) or _packs_tensors(path) or opens_as_tensors(path)


def _holds_arrays(path: Path) -> bool:
    """Whether a file is a pickle that holds arrays or tensors, by its name and by what its beginning names."""
    if not path.name.lower().endswith(_PICKLES):
        return False
    try:
        return _ARRAY_MODULES.search(bytes(open_buffer(path)[:_BEGINNING])) is not None
    except BadFile:
        return False  # nothing says that it holds any


def _packs_tensors(path: Path) -> bool:
    """Whether a file is a zip with tensor files in it; one in a store is not fetched to find out."""
    if not path.name.lower().endswith(".zip") or isinstance(path, RemotePath):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return any(map(is_named_as_tensors, archive.namelist()))
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False  # nothing says that it holds any


class _Search:
    """Searches for tensor files in the folders beside a dump, up to a number of names in total."""

    def __init__(self, most: int) -> None:
        self._left = most

    def problems(self, folder: Path) -> Iterator[Problem]:
        """Report the tensor files of a folder that were not read."""
        unlisted: list[Problem] = []
        if names := sorted(self._files(folder, unlisted), key=natural_key):
            shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
            what = "1 tensor file that was" if len(names) == 1 else f"{len(names):,} tensor files that were"
            why = f"holds {what} not read ({shown:.300}); compare the folder by itself, or move it"
            yield Problem(folder.name, why, is_unread=True)
        yield from unlisted
        if self._left <= 0:
            why = f"is one of more than {MOST_LOOKED_AT:,} files and folders beside the dump, too many to be looked at"
            yield Problem(folder.name, f"{why}; move what is no part of it", is_unread=True)

    def _files(self, folder: Path, unlisted: list[Problem]) -> Iterator[str]:
        """The tensor files below a folder, by their paths from the dump."""
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
