"""Reading the bytes of a dump's files: the only code that opens them, or parses their JSON.

Files are mapped, not read whole, unless they are so small that reading is quicker. Files in a store are read in ranges
(``open_buffer``), or fetched whole for readers that need that (``map_file``). Offsets and shapes that a header claims
are checked here, once, before numpy sees them. A file that changes afterwards is noticed in ``mappings``, or here when
it is mapped again. JSON is read more strictly than by ``json.loads``: a repeated key is an error, since either value
could be meant.
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
from tensordiff.util.mappings import map_pages, raise_if_lost
from tensordiff.util.memory import shortage
from tensordiff.util.remote import RemotePath, known_remote
from tensordiff.util.remote.ranges import RangeFile

Bytes = mmap.mmap | bytes
"""A file's bytes in memory."""
Buffer = Bytes | RangeFile
"""The same, or a remote file, which has a length and can be sliced; ``view_buffer`` makes tensors of it."""

NOT_A_FILE = "is a pipe, a socket or a device, not a file; write what it gives to a file"

MAX_RANK = 64  # numpy's own limit
_MAX_BYTES = (1 << 63) - 1  # numpy's own limit
_MOST_MAPPED = 64
_READ_BELOW = 1 << 16  # under this, one read() costs less than mapping and unmapping
_FIRST_READ = 1 << 14  # read before asking for the size: in a large folder, most files are no longer than this


def map_file(path: str | os.PathLike[str]) -> Bytes:
    """Map a file for reading; a small one is simply read, and one in a store is fetched whole."""
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
        if (
            head[:1] in _FIRST_BYTES_IF_NOT_FETCHED
            and os.fspath(path).lower().endswith(_TENSOR_SUFFIXES)
            and (why := why_not_fetched(head))
        ):
            raise BadFile(path, why)
        if len(head) < _FIRST_READ:
            return head or _empty_content(handle, path)
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


_FIRST_BYTES_IF_NOT_FETCHED = (b"v", b"<")
_TENSOR_SUFFIXES = (*SUFFIXES, ".bin", ".ckpt")


def why_not_fetched(head: bytes) -> str | None:
    """Why a file is only a placeholder for one that was never downloaded; None if it may be the file.

    ``head`` is its first bytes.
    """
    if head.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer and not the file itself; fetch that with git lfs pull"
    if head[:15].lower().startswith((b"<!doctype html", b"<html")):
        return "is a web page and no tensor file, as a download that failed leaves one; download it again"
    return None


def open_buffer(path: str | os.PathLike[str]) -> Buffer:
    """Open a file for readers that slice it and make tensors by ``view_buffer``; one in a store is read in ranges."""
    remote = known_remote(path)
    return _map_local(path) if remote is None else _range_file(remote)


def in_memory(buffer: Buffer) -> Bytes:
    """A file's bytes for readers that need all of them; a remote file is fetched."""
    return buffer.whole() if type(buffer) is RangeFile else buffer


def _range_file(path: RemotePath) -> RangeFile:
    if not path.is_file():
        raise BadFile(path, "cannot be opened (no such file)")
    return RangeFile(path, path.stat().st_size)


def _empty_content(handle: int, path: str | os.PathLike[str]) -> bytes:
    """The content of an empty file. Something empty that is no regular file could be anything, and is refused."""
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise BadFile(path, NOT_A_FILE)
    return b""


def reason(error: Exception) -> str:
    """What the system says went wrong, as part of a sentence."""
    return (getattr(error, "strerror", None) or str(error)).lower()


class FileVersion(NamedTuple):
    """Changes if a file is written to, or replaced by another."""

    size: int
    modified_ns: int


def version_of(path: Path) -> FileVersion | None:
    """The version of a file as it is now; None if that cannot be determined."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return FileVersion(status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, eq=False)
class MappedFile:
    """A file shared by many entries, which is mapped when the first of them is read."""

    path: Path
    version: FileVersion | None = None
    """The version whose header was read; a newer one may have other tensors at these offsets. None if the file may
    grow."""

    _mapped: Buffer | None = field(default=None, init=False, repr=False)

    @property
    def buffer(self) -> Buffer:
        """The whole file.

        Only the last 64 files stay mapped, since each keeps a file open and a process may open only so many.
        """
        buffer = self._mapped
        if buffer is None:
            buffer = self._map()
            object.__setattr__(self, "_mapped", buffer)
            _unmap_oldest(self)
        raise_if_lost(buffer)
        return buffer

    def _map(self) -> Buffer:
        buffer, version = open_buffer(self.path), self.version
        # If it became shorter, reading a tensor that is cut off gives a better error.
        if version is not None and len(buffer) >= version.size and version_of(self.path) != version:
            raise BadFile(self.path, "was written to or replaced after it was opened; open the dump again")
        return buffer


_recently_mapped: deque[ref[MappedFile]] = deque()
"""In the order they were mapped. Weak references: closing a dump closes its files."""


def _unmap_oldest(newest: MappedFile) -> None:
    _recently_mapped.append(ref(newest))
    if len(_recently_mapped) > _MOST_MAPPED and (oldest := _recently_mapped.popleft()()) is not None:
        object.__setattr__(oldest, "_mapped", None)  # arrays that were read from it keep it mapped


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
    """The flat elements ``begin`` to ``end`` of a tensor as a tensor; None if it is not contiguous in one file."""
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
    raise_if_lost(buffer)
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
    """Whether numpy can hold a shape; an empty tensor may still claim more than that."""
    shape, dtype = spec
    return len(shape) <= MAX_RANK and _numpy_size(shape) * dtype.itemsize <= _MAX_BYTES


def _numpy_size(shape: tuple[int, ...]) -> int:
    """The size that numpy checks against its limit; an empty dimension counts as 1."""
    return math.prod(max(n, 1) for n in shape) if min(shape, default=0) >= 0 else _MAX_BYTES + 1


def _reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """How many elements from its start a strided tensor extends. torch writes no negative strides."""
    if 0 in shape:
        return 0
    if any(s < 0 for s in strides) or len(strides) != len(shape):
        return 1 << 62
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def refuse_beyond_memory(path: str | os.PathLike[str], what: str, nbytes: int, instead: str) -> None:
    """Refuse values that must be copied if there is not enough memory.

    ``what`` is a phrase like ``its member x unpacks to``.
    """
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
"""Decodes many small texts as strictly as ``parse_json``. On an error, callers parse the whole for a proper message."""
