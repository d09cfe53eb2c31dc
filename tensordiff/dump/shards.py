"""One safetensors file, written as tensors come.

The header stands first in the file and is known last. So room is kept for it (safetensors allows
spaces after the header), the tensors follow one upon the other without a hole, and the header is put
in its place when the shard is closed. No array is held, and one that is not contiguous is copied out
piece by piece. Reading is done elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tensordiff.dump.dtypes import Array, name_of
from tensordiff.dump.manifest import SCHEMA, encode
from tensordiff.dump.model import Spec
from tensordiff.dump.safetensors_header import CODES

_PIECE = 1 << 22  # bytes of a scattered array that are copied out at a time

# Packed types are left out: numpy keeps a byte an element.
_CODES = {dtype.name: code for code, dtype in CODES.items() if code != "F4"}


class Shard:
    """A safetensors file that grows. What was appended is whole in the file before ``append`` returns."""

    def __init__(self, path: Path, header_bytes: int) -> None:
        self.path = path
        self._start = self.end = -(-(8 + header_bytes) // 64) * 64
        self._header = bytearray(f'{{"__metadata__":{encode({"schema": SCHEMA})}'.encode())
        self._room = header_bytes - len(self._header) - 1
        self._file = create(path)
        try:
            # Spaces, not a hole: on a full disk there must still be room for the header.
            write_all(self._file, memoryview(b" " * self._start), 0)
        except BaseException:
            os.close(self._file)
            raise

    def has_room(self, key: str, spec: Spec) -> bool:
        """Whether the header can take one more tensor."""
        return len(_item(key, spec, self.end)) <= self._room

    def append(self, key: str, array: Array) -> int:
        """Write an array's values behind the last; give the offset where they begin."""
        begin = end = self.end
        for piece in _pieces(array):
            end += write_all(self._file, piece, end)
        item = _item(key, Spec(array.shape, array.dtype), begin - self._start)
        self._header += item
        self._room -= len(item)
        self.end = end
        return begin

    def close(self, *, lasting: bool = True) -> None:
        """Put the header in its place and cut off a tensor that was not finished; wait for the disk if asked."""
        try:
            os.ftruncate(self._file, self.end)
            size = self._start - 8
            header = bytes(self._header + b"}").ljust(size)
            write_all(self._file, memoryview(size.to_bytes(8, "little") + header), 0)
            if lasting:
                os.fsync(self._file)
        finally:
            os.close(self._file)


def create(path: Path) -> int:
    """Open a new file for writing; a link lying in wait under its name is not followed."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)


def header_bytes_for(key: str, spec: Spec) -> int:
    """How large a header must be that describes this one tensor."""
    return 64 + len(_item(key, spec, 0))


def write_all(file: int, data: memoryview, offset: int) -> int:
    """Write all of the data at an offset, however many calls the system takes for it."""
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], offset + done)
    return done


def _item(key: str, spec: Spec, begin: int) -> bytes:
    """A tensor's line in the header. A type without a name in safetensors is stored as bytes."""
    shape, dtype = spec
    code = _CODES.get(name_of(dtype))
    if code is None:
        code, shape = "U8", (*shape, dtype.itemsize)
    about = {"dtype": code, "shape": shape, "data_offsets": (begin, begin + spec.nbytes)}
    return f",{encode(key)}:{encode(about)}".encode()


def _pieces(array: Array) -> Iterator[memoryview]:
    """An array's bytes in row-major order, without a copy where they lie so already."""
    if array.flags.c_contiguous and array.dtype.isnative:
        yield _raw(array)
        return
    for part in _split(array):
        yield _raw(np.ascontiguousarray(part, array.dtype.newbyteorder("=")))


def _raw(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _split(array: Array) -> Iterator[Array]:
    """Cut along the first axes until no part is larger than a piece."""
    if array.nbytes <= _PIECE or array.ndim == 0:
        yield array
        return
    rows = _PIECE // array[0].nbytes
    if rows == 0:
        for row in array:
            yield from _split(row)
        return
    for start in range(0, len(array), rows):
        yield array[start : start + rows]
