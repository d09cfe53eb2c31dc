"""Writing a safetensors file while tensors arrive. Reading is done in ``readers``.

The header comes first in the file but is known last. So space is kept for it (safetensors allows spaces after the
header), the tensors follow one another without gaps, and the header is written when the shard is closed. A tensor is
begun first, and then its bytes are written, for many tensors at a time. A complete tensor counts; an incomplete one is
cut off. No array is kept.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from tensordiff.dump.dtypes import Array, name_of
from tensordiff.dump.model import Spec
from tensordiff.dump.native.manifest import SCHEMA, encode, json_shape, json_string
from tensordiff.dump.readers.safetensors import CODES

PIECE = 1 << 22
"""How many bytes are copied at a time if an array cannot be written without a copy."""

_SPACES = memoryview(b" " * (1 << 16))
_ROW_OVERHEAD = 192  # bytes of a header's row beside name and shape, at most
_MAX_VIEWS = 1024  # IOV_MAX: the system takes no more in one call
_RESERVE_FROM = 1 << 20  # smaller files are written without reserving space
_MIN_AHEAD, _MAX_AHEAD = 4 << 20, 32 << 20  # bytes reserved ahead of what is written
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE

# Packed dtypes are left out, since numpy stores one element per byte.
_CODES = {dtype.name: code for code, dtype in CODES.items() if code != "F4"}


class Shard:
    """A safetensors file that grows as tensors are written."""

    def __init__(self, folder: Path, name: str, header_bytes: int, *, reserves_space: bool = True) -> None:
        self.name, self._reserves_space = name, reserves_space
        self._start = self._settled = self._reserved = -(-(8 + header_bytes) // 64) * 64
        self.end = self.written = self._start
        """Where the next tensor will begin, and how far bytes are written."""
        self._header = bytearray(f'{{"__metadata__":{encode({"schema": SCHEMA})}'.encode())
        self._room = header_bytes - len(self._header) - 1
        self._reserved_rows: deque[int] = deque()
        self._file = create(folder / name)
        try:
            # Spaces, not a hole: on a full disk there must still be space for the header.
            for offset in range(0, self._start, len(_SPACES)):
                write_all(self._file, _SPACES[: self._start - offset], offset)
        except BaseException:
            os.close(self._file)
            raise

    def has_room(self, row_bytes: int) -> bool:
        """Whether the header has space for a row of at most so many bytes."""
        return row_bytes <= self._room

    def begin(self, row_bytes: int, nbytes: int) -> int:
        """Reserve a tensor's bytes and its row in the header; returns the offset where it begins."""
        self._room -= row_bytes
        self._reserved_rows.append(row_bytes)
        begin, self.end = self.end, self.end + nbytes
        return begin

    def write(self, views: Sequence[memoryview]) -> None:
        """Append bytes of the tensors that were begun."""
        self._reserve(self.written + sum(map(len, views)))
        while views:
            done = os.pwritev(self._file, views[:_MAX_VIEWS], self.written)
            self.written += done
            views = _unwritten(views, done)

    def settle(self, key: str, spec: Spec, begin: int) -> None:
        """Add the next begun tensor to the header: all its bytes are in the file."""
        self._settled = begin + spec.nbytes
        line = _header_row(key, spec, begin - self._start, self._settled - self._start)
        self._header += line
        self._room += self._reserved_rows.popleft() - len(line)

    def cut(self) -> None:
        """Cut off what the header does not describe: an unfinished tensor, and space reserved ahead."""
        os.ftruncate(self._file, self._settled)
        self.end = self.written = self._settled

    def close(self, *, durable: bool = True) -> None:
        """Write the header. The file must end with the last tensor it names. ``durable`` waits for the disk."""
        try:
            size = self._start - 8
            write_all(self._file, memoryview(size.to_bytes(8, "little") + self._header + b"}"), 0)
            if durable:
                os.fsync(self._file)
        finally:
            os.close(self._file)

    def _reserve(self, end: int) -> None:
        """Reserve space ahead, more as the file grows, which is quicker than allocating block by block.

        If the system refuses, writing goes on without it, and fails by itself when the disk is full.
        """
        size = end - self._start if self._reserves_space else 0
        if end > self._reserved and size >= _RESERVE_FROM and (allocate := _allocator()) is not None:
            begin, self._reserved = self._reserved, end + min(max(size, _MIN_AHEAD), _MAX_AHEAD)
            allocate(self._file, _KEEP_SIZE, begin, self._reserved - begin)


def create(path: Path) -> int:
    """Open a new file for writing; an existing file or link of that name is an error."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)


def row_bytes(name: str, spec: Spec) -> int:
    """The most bytes that a tensor's row in a header takes."""
    # For a lone surrogate, the key takes one character more than JSON does.
    return len(json_string(name)) * (1 if name.isascii() else 2) + 21 * len(spec.shape) + _ROW_OVERHEAD


def header_bytes_for(row_bytes: int) -> int:
    """How large a header with a single row must be."""
    return 64 + row_bytes


def write_all(file: int, data: memoryview, offset: int) -> int:
    """Write all data at an offset, in as many calls as the system needs."""
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], offset + done)
    return done


def pieces(array: Array, most: int = PIECE) -> Iterator[Array]:
    """An array in row-major order, in parts of at most ``most`` bytes, none of them a copy."""
    if array.nbytes <= most or array.ndim == 0:
        yield array
        return
    if array.flags.c_contiguous:
        array = array.reshape(-1)
    rows = most // array[0].nbytes
    if rows == 0:
        for row in array:
            yield from pieces(row, most)
        return
    for start in range(0, len(array), rows):
        yield array[start : start + rows]


def views(array: Array) -> Iterator[memoryview]:
    """An array's bytes in row-major order, without a copy if it is contiguous."""
    if array.flags.c_contiguous and array.dtype.isnative:
        yield raw(array)
        return
    for part in pieces(array):
        yield raw(np.ascontiguousarray(part, array.dtype.newbyteorder("=")))


def raw(array: Array) -> memoryview:
    """The bytes of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


def _unwritten(views: Sequence[memoryview], done: int) -> Sequence[memoryview]:
    """What is left after ``done`` bytes were written."""
    for number, view in enumerate(views):
        if done < len(view):
            return [view[done:], *views[number + 1 :]]
        done -= len(view)
    return ()


def _header_row(key: str, spec: Spec, begin: int, end: int) -> bytes:
    """A tensor's row in the header. A dtype that safetensors has no code for is written as bytes."""
    shape, dtype = spec
    code = _CODES.get(name_of(dtype))
    if code is None:
        code, shape = "U8", (*shape, dtype.itemsize)
    line = f',{json_string(key)}:{{"dtype":"{code}","shape":{json_shape(shape)},"data_offsets":[{begin},{end}]}}'
    return line.encode()


@lru_cache(maxsize=1)
def _allocator() -> Callable[[int, int, int, int], int] | None:
    """Linux's ``fallocate``, if there is one. Python's ``posix_fallocate`` would change the file's size."""
    function = getattr(ctypes.CDLL(None), "fallocate", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return function
