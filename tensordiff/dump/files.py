"""Reading the bytes of a dump's files: the only code that opens them, or parses their JSON.

Files are mapped, never read whole, unless they are so small that reading is quicker. Those in a store are read in
ranges (``open_buffer``), or fetched whole for readers that need them so (``map_file``). Whatever a
header claims about offsets and shapes is checked here, once, before numpy sees it. A file that changes
after that is noticed in ``mappings``, or here when it is mapped again. JSON is read more strictly than
``json.loads`` does: a key given twice is an error, since either could be meant.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Spec, StoredTensor
from tensordiff.dump.readers import SUFFIXES
from tensordiff.errors import BadFile
from tensordiff.util.mappings import map_pages, refuse_lost
from tensordiff.util.memory import shortage
from tensordiff.util.remote import RemotePath, known_remote
from tensordiff.util.remote.ranges import RangeFile

Bytes = mmap.mmap | bytes
"""A file's bytes in memory."""
Buffer = Bytes | RangeFile
"""The same, or a remote file: it has a length and gives slices, and ``view_buffer`` makes tensors of it."""

NOT_A_FILE = "is a pipe, a socket or a device, not a file; write what it gives to a file"

MAX_RANK = 64  # numpy's own limit
_MAX_BYTES = (1 << 63) - 1  # numpy's own limit
_MOST_MAPPED = 64
_READ_BELOW = 1 << 16  # under this, one read() costs less than mapping and unmapping
_FIRST_READ = 1 << 14  # read before asking for the size: for most files of a large folder this is all of it


def map_file(path: str | os.PathLike[str]) -> Bytes:
    """Map a file for reading; a small one is simply read. One in a store is fetched whole."""
    if (remote := known_remote(path)) is not None:
        return _range_file(remote).whole()
    return _map_local(path)


def _map_local(path: str | os.PathLike[str]) -> Bytes:
    try:
        # O_NONBLOCK: opening a fifo must not wait for a writer that never comes.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise BadFile(path, f"cannot be opened ({reason(error)})") from error
    try:
        head = os.read(handle, _FIRST_READ)
        if head[:1] in _OF_STAND_INS and os.fspath(path).lower().endswith(_TENSORS) and (why := why_stand_in(head)):
            raise BadFile(path, why)
        if len(head) < _FIRST_READ:
            return head or _nothing(handle, path)
        size = os.fstat(handle).st_size
        if size < _READ_BELOW:
            return head + os.read(handle, max(size - len(head), 0))
        return map_pages(handle, size, path)
    except BlockingIOError as error:
        raise BadFile(path, NOT_A_FILE) from error
    except (OSError, ValueError) as error:
        raise BadFile(path, f"cannot be read ({reason(error)})") from error
    finally:
        os.close(handle)


_OF_STAND_INS = (b"v", b"<")
_TENSORS = (*SUFFIXES, ".bin", ".ckpt")


def why_stand_in(head: bytes) -> str | None:
    """What stands in the place of a file that was never fetched, by its first bytes; None where it may be the file."""
    if head.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer and not the file itself; fetch that with git lfs pull"
    if head[:15].lower().startswith((b"<!doctype html", b"<html")):
        return "is a web page and no tensor file, as a download that failed leaves one; download it again"
    return None


def open_buffer(path: str | os.PathLike[str]) -> Buffer:
    """A file for readers that take slices of it and tensors by ``view_buffer``: one in a store is read in ranges."""
    remote = known_remote(path)
    return _map_local(path) if remote is None else _range_file(remote)


def in_memory(buffer: Buffer) -> Bytes:
    """A file's bytes for readers that need all of them; those of a remote one are fetched."""
    return buffer.whole() if type(buffer) is RangeFile else buffer


def _range_file(path: RemotePath) -> RangeFile:
    if not path.is_file():
        raise BadFile(path, "cannot be opened (no such file)")
    return RangeFile(path, path.stat().st_size)


def _nothing(handle: int, path: str | os.PathLike[str]) -> bytes:
    """What an empty file holds. What is empty and no file may be anything, and is refused."""
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise BadFile(path, NOT_A_FILE)
    return b""


def reason(error: Exception) -> str:
    """What the system says went wrong, as part of a sentence."""
    return (getattr(error, "strerror", None) or str(error)).lower()


class FileVersion(NamedTuple):
    """What changes where a file is written to, or another one is put in its place."""

    size: int
    modified_ns: int


def version_of(path: Path) -> FileVersion | None:
    """The version of a file that is there now; None where it cannot be asked."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return FileVersion(found.st_size, found.st_mtime_ns)


@dataclass(frozen=True, eq=False)
class MappedFile:
    """A file shared by many entries, mapped when one of them is read."""

    path: Path
    version: FileVersion | None = None
    """Of the file whose header was read: another one has other tensors at these offsets. None where it may grow."""

    _mapped: Buffer | None = field(default=None, init=False, repr=False)

    @property
    def buffer(self) -> Buffer:
        """The whole file. Only the last 64 stay mapped: each keeps a file open, and a process may open only so many."""
        buffer = self._mapped
        if buffer is None:
            buffer = self._map()
            object.__setattr__(self, "_mapped", buffer)
            _unmap_oldest(self)
        refuse_lost(buffer)
        return buffer

    def _map(self) -> Buffer:
        buffer, version = open_buffer(self.path), self.version
        # Where it became shorter, the tensors that are cut off say so themselves.
        if version is not None and len(buffer) >= version.size and version_of(self.path) != version:
            raise BadFile(self.path, "was written to or replaced after it was opened; open the dump again")
        return buffer


_mapped_lately: deque[ref[MappedFile]] = deque()
"""In the order they were mapped. Not held: a file of a dump that is closed is closed with it."""


def _unmap_oldest(newest: MappedFile) -> None:
    _mapped_lately.append(ref(newest))
    if len(_mapped_lately) > _MOST_MAPPED and (oldest := _mapped_lately.popleft()()) is not None:
        object.__setattr__(oldest, "_mapped", None)  # whoever reads from it holds it as long


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor at an offset of a file, contiguous or strided (strides count elements)."""

    file: MappedFile
    offset: int
    spec: Spec
    strides: tuple[int, ...] | None = None

    def read(self) -> Array:
        """Map the values."""
        return view_buffer(self.file.buffer, self.file.path, self.offset, self.spec, self.strides)


def flat_part(stored: StoredTensor, begin: int, end: int) -> StoredTensor | None:
    """The flat elements ``begin`` to ``end`` of a tensor as one of its own; None where it does not lie in one place."""
    contiguous = getattr(stored, "contiguous", None)
    whole = contiguous() if contiguous is not None else stored
    if not isinstance(whole, FileTensor) or whole.strides is not None or not whole.spec.dtype.isnative:
        return None
    dtype = whole.spec.dtype
    return FileTensor(whole.file, whole.offset + begin * dtype.itemsize, Spec((end - begin,), dtype))


def view_buffer(
    buffer: Buffer,
    path: str | os.PathLike[str],
    offset: int,
    spec: Spec,
    strides: tuple[int, ...] | None = None,
) -> Array:
    """Part of a buffer as a tensor, after checking that it lies inside."""
    refuse_lost(buffer)
    shape, dtype = spec
    room = len(buffer) - math.prod(shape) * dtype.itemsize
    if strides is None and 0 <= offset <= room and min(shape, default=1) > 0 and len(shape) <= MAX_RANK:
        if type(buffer) is RangeFile:
            return np.ndarray(shape, dtype, buffer.array(offset, len(buffer) - room))
        return np.ndarray(shape, dtype, buffer, offset)  # the common case: what fits is never too large for numpy
    if offset < 0 or not is_possible(spec):
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
    if type(buffer) is RangeFile:
        return np.ndarray(shape, dtype, buffer.array(offset, reach * dtype.itemsize), 0, steps)
    return np.ndarray(shape, dtype, buffer, offset, steps)


def is_possible(spec: Spec) -> bool:
    """Whether numpy can hold a shape; an empty one may still claim more than that."""
    shape, dtype = spec
    return len(shape) <= MAX_RANK and _numpy_size(shape) * dtype.itemsize <= _MAX_BYTES


def _numpy_size(shape: tuple[int, ...]) -> int:
    """The size numpy checks against its limit, where an empty dimension counts as 1."""
    return math.prod(max(n, 1) for n in shape) if min(shape, default=0) >= 0 else _MAX_BYTES + 1


def _reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """How many elements past its start a strided tensor reaches. torch writes no negative strides."""
    if 0 in shape:
        return 0
    if any(s < 0 for s in strides) or len(strides) != len(shape):
        return 1 << 62
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def refuse_beyond_memory(path: str | os.PathLike[str], what: str, nbytes: int, instead: str) -> None:
    """Refuse values that must be copied and for which there is no memory: ``its member x unpacks to``."""
    if numbers := shortage(nbytes):
        raise BadFile(path, f"{what} {numbers}; {instead}")


def parse_json(text: bytes, path: str | os.PathLike[str], what: str) -> Any:
    """Parse JSON text; ``what`` names it in a sentence: ``its header``."""
    try:
        return json.loads(text.decode(), object_pairs_hook=_unique_keys)
    except RecursionError as error:
        raise BadFile(path, f"{what} is nested too deeply to be real") from error
    except ValueError as error:
        raise BadFile(path, f"{what} is not valid JSON ({error!s:.200}); dump it again") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        key, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{key!r:.80} stands in it twice")
    return unique


STRICT_JSON = json.JSONDecoder(object_pairs_hook=_unique_keys)
"""Decodes many small texts as strictly as ``parse_json`` does; its errors are for callers that parse the whole then."""
