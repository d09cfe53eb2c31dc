"""The only code that opens a dump's files.

Files are mapped, never read whole, unless they are so small that reading is quicker. Everything a
header claims about offsets is checked here, once, before numpy sees it. A dump may come from a
stranger: a folder's members must lie in that folder.

The only code that parses JSON from a dump.

Stricter than ``json.loads``: a name given twice is an error, because which of the two counts would
be a guess. Every way a stranger's JSON can fail comes out as one ``BadFile``.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Problem, Spec
from tensordiff.dump.names import natural_key
from tensordiff.errors import BadFile, NotADump, printable

Buffer = mmap.mmap | bytes

MAX_RANK = 64  # numpy's own limit
_MAX_BYTES = (1 << 63) - 1  # numpy's own limit
_READ_BELOW = 1 << 16  # under this, one read() costs less than mapping and unmapping
_AT_ONCE = 1 << 14  # so much is read without asking for the size: a folder may hold many thousands of such files


def map_file(path: str | os.PathLike[str]) -> Buffer:
    """Map a file for reading; a small one is simply read."""
    try:
        # O_NONBLOCK: opening a fifo must not wait for a writer that never comes.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise BadFile(path, f"cannot be opened ({_reason(error)})") from error
    try:
        begin = os.read(handle, _AT_ONCE)
        if len(begin) < _AT_ONCE:
            return begin
        size = os.fstat(handle).st_size
        if size < _READ_BELOW:
            return begin + os.read(handle, size - len(begin))
        return mmap.mmap(handle, size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise BadFile(path, f"cannot be read ({_reason(error)})") from error
    finally:
        os.close(handle)


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


@dataclass(frozen=True, eq=False)
class MappedFile:
    """A file shared by many entries, mapped when one of them is read."""

    path: Path

    @property
    def buffer(self) -> Buffer:
        """The whole file. Few stay mapped: each keeps a file open, and a dump may have more than may be."""
        return _keep_mapped(self)


@lru_cache(maxsize=64)
def _keep_mapped(file: MappedFile) -> Buffer:
    return map_file(file.path)


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor lying at an offset of a file, contiguous or strided (strides count elements)."""

    file: MappedFile
    offset: int
    spec: Spec
    strides: tuple[int, ...] | None = None

    def read(self) -> Array:
        """Map the values."""
        return view_buffer(self.file.buffer, self.file.path, self.offset, self.spec, self.strides)


def view_buffer(
    buffer: Buffer,
    path: str | os.PathLike[str],
    offset: int,
    spec: Spec,
    strides: tuple[int, ...] | None = None,
) -> Array:
    """See part of a buffer as a tensor, after checking that it lies inside."""
    shape, dtype = spec
    room = len(buffer) - math.prod(shape) * dtype.itemsize
    if strides is None and 0 <= offset <= room and min(shape, default=1) > 0 and len(shape) <= MAX_RANK:
        return np.ndarray(shape, dtype, buffer, offset)  # the common case: what fits is never too large for numpy
    if len(shape) > MAX_RANK or offset < 0 or _spread(shape) * dtype.itemsize > _MAX_BYTES:
        raise BadFile(path, f"claims an impossible shape {list(shape)!s:.200} at offset {offset}")
    reach = math.prod(shape) if strides is None else _reach(shape, strides)
    if offset + reach * dtype.itemsize > len(buffer):
        raise BadFile(
            path,
            f"is truncated or its header lies: a {dtype.name} tensor of shape {list(shape)} at byte {offset} "
            f"does not fit in {len(buffer)} bytes; dump it again",
        )
    if not reach:
        return np.empty(shape, dtype)
    # Not as_strided, which names dtypes to numpy and so loses float8_e5m2.
    steps = None if strides is None else tuple(s * dtype.itemsize for s in strides)
    return np.ndarray(shape, dtype, buffer, offset, steps)


def _spread(shape: tuple[int, ...]) -> int:
    """What numpy counts a shape as: it refuses sizes past its limit even of a tensor without elements."""
    return math.prod(max(n, 1) for n in shape) if min(shape, default=0) >= 0 else _MAX_BYTES + 1


def _reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """How many elements past its start a strided tensor reaches. Negative strides never leave torch."""
    if 0 in shape:
        return 0
    if any(s < 0 for s in strides) or len(strides) != len(shape):
        return 1 << 62
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def list_files(folder: Path) -> tuple[list[str], list[Problem]]:
    """Names of the regular files in a folder in natural order, and what was left out."""
    names: list[str] = []
    problems: list[Problem] = []
    try:
        with os.scandir(folder) as found:
            for item in found:
                if item.is_symlink() and (why := _bad_link(folder, item.name)):
                    problems.append(Problem(item.name, why, is_unread=_holds_tensors(item.name)))
                elif item.is_file():
                    names.append(item.name)
    except OSError as error:
        raise NotADump(f"{printable(folder)}: cannot be listed ({_reason(error)})") from error
    names.sort(key=natural_key)
    return names, problems


def _holds_tensors(name: str) -> bool:
    """Whether a name is one of a tensor file or of a step's folder."""
    return name.isdecimal() or name.lower().endswith((".safetensors", ".pt", ".pth", ".max", ".npy", ".npz"))


def _bad_link(folder: Path, name: str) -> str | None:
    """Why a symbolic link is not followed, if it is not."""
    try:
        target = (folder / name).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        return f"is a link that leads nowhere ({_reason(error)})"
    home = folder.resolve()
    # The Hugging Face cache keeps snapshots/<revision>/ as links into blobs/ beside it.
    if target.is_relative_to(home) or target.is_relative_to(home.parent.parent / "blobs"):
        return None
    return "is a link to outside the dump; open its target itself if you trust it"


def member(folder: Path, name: str) -> Path:
    """Path of a file that a dump's own index names; it must lie in the folder."""
    path = folder / name
    if os.sep in name or "\0" in name or name in ("", ".", "..") or (path.is_symlink() and _bad_link(folder, name)):
        raise BadFile(folder, f"its index names {name!r}, which is not a file of this folder")
    return path


def parse_json(text: bytes, path: str | os.PathLike[str], what: str) -> Any:
    """Parse JSON text; ``what`` names it in a sentence: ``its header``."""
    try:
        return json.loads(text.decode(), object_pairs_hook=_without_twins)
    except RecursionError as error:
        raise BadFile(path, f"{what} is nested too deeply to be real") from error
    except ValueError as error:
        raise BadFile(path, f"{what} is not valid JSON ({error!s:.200}); dump it again") from error


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        twin, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{twin!r:.80} stands in it twice")
    return unique
