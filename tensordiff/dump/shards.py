"""One safetensors file, written as tensors come.

The header stands first in the file and is known last. So room is kept for it (safetensors allows
spaces after the header), the tensors follow one upon the other without a hole, and the header is put
in its place when the shard is closed. A tensor is begun, then its bytes come, as many tensors' at a
time as there are; one that is wholly in the file counts, one that is not is cut off. No array is held.
Reading is done elsewhere.
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
from tensordiff.dump.manifest import SCHEMA, encode, lengths, quoted
from tensordiff.dump.model import Spec
from tensordiff.dump.readers.safetensors import CODES

PIECE = 1 << 22
"""Bytes of an array that are copied out at a time, where it cannot be written as it lies."""

_SPACES = memoryview(b" " * (1 << 16))
_BESIDE = 192  # bytes that stand in a header's line beside name and shape, at most
_MOST_VIEWS = 1024  # the system takes no more in one call
_WORTH_ROOM = 1 << 20  # a file of fewer bytes takes what room it finds
_LEAST_AHEAD, _MOST_AHEAD = 4 << 20, 32 << 20  # bytes that room is asked for before they are there
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE

# Packed types are left out: numpy keeps a byte an element.
_CODES = {dtype.name: code for code, dtype in CODES.items() if code != "F4"}


class Shard:
    """A safetensors file that grows."""

    def __init__(self, folder: Path, name: str, header_bytes: int) -> None:
        self.name = name
        self._start = self._settled = self._reserved = -(-(8 + header_bytes) // 64) * 64
        self.end = self.written = self._start
        """Where the next tensor will begin, and how far bytes are there."""
        self._header = bytearray(f'{{"__metadata__":{encode({"schema": SCHEMA})}'.encode())
        self._room = header_bytes - len(self._header) - 1
        self._promised: deque[int] = deque()
        self._file = create(folder / name)
        try:
            # Spaces, not a hole: on a full disk there must still be room for the header.
            for offset in range(0, self._start, len(_SPACES)):
                write_all(self._file, _SPACES[: self._start - offset], offset)
        except BaseException:
            os.close(self._file)
            raise

    def has_room(self, label_bytes: int) -> bool:
        """Whether the header can take one more tensor, whose line takes so many bytes at most."""
        return label_bytes <= self._room

    def begin(self, label_bytes: int, nbytes: int) -> int:
        """Where a tensor will lie, whose bytes are written next; its line in the header may come later."""
        self._room -= label_bytes
        self._promised.append(label_bytes)
        begin, self.end = self.end, self.end + nbytes
        return begin

    def write(self, views: Sequence[memoryview]) -> None:
        """Write bytes of what was begun, behind the last; however many calls the system takes for it."""
        self._reserve(self.written + sum(map(len, views)))
        while views:
            done = os.pwritev(self._file, views[:_MOST_VIEWS], self.written)
            self.written += done
            views = _rest(views, done)

    def settle(self, key: str, spec: Spec, begin: int) -> None:
        """Describe the next of the tensors begun: it is wholly in the file."""
        self._settled = begin + spec.nbytes
        line = _line(key, spec, begin - self._start, self._settled - self._start)
        self._header += line
        self._room += self._promised.popleft() - len(line)

    def cut(self) -> None:
        """Cut off what is not described: a tensor that was not finished, and room that was asked for ahead."""
        os.ftruncate(self._file, self._settled)
        self.end = self.written = self._settled

    def close(self, *, lasting: bool = True) -> None:
        """Put the header in its place, when the file ends with the last tensor it names; wait for the disk if asked."""
        try:
            size = self._start - 8
            write_all(self._file, memoryview(size.to_bytes(8, "little") + self._header + b"}"), 0)
            if lasting:
                os.fsync(self._file)
        finally:
            os.close(self._file)

    def _reserve(self, end: int) -> None:
        """Ask for room ahead, more as the file grows: a file system that finds it block by block takes longer.

        Only a wish: where it is not granted, writing goes on without, and says itself when the disk is full.
        """
        size = end - self._start
        if end > self._reserved and size >= _WORTH_ROOM and (allocate := _allocator()) is not None:
            begin, self._reserved = self._reserved, end + min(max(size, _LEAST_AHEAD), _MOST_AHEAD)
            allocate(self._file, _KEEP_SIZE, begin, self._reserved - begin)


def create(path: Path) -> int:
    """Open a new file for writing; a link lying in wait under its name is not followed."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)


def label_bytes(name: str, spec: Spec) -> int:
    """How many bytes a tensor's line in a header takes at most."""
    # A key spells what has no UTF-8 with one character more than JSON does.
    return len(quoted(name)) * (1 if name.isascii() else 2) + 21 * len(spec.shape) + _BESIDE


def header_bytes_for(label_bytes: int) -> int:
    """How large a header must be that describes one tensor."""
    return 64 + label_bytes


def write_all(file: int, data: memoryview, offset: int) -> int:
    """Write all of the data at an offset, however many calls the system takes for it."""
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], offset + done)
    return done


def pieces(array: Array, most: int = PIECE) -> Iterator[Array]:
    """An array in row-major order: as it is, or cut into parts no larger than asked, none of them a copy."""
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
    """An array's bytes in row-major order, without a copy where they lie so already."""
    if array.flags.c_contiguous and array.dtype.isnative:
        yield raw(array)
        return
    for part in pieces(array):
        yield raw(np.ascontiguousarray(part, array.dtype.newbyteorder("=")))


def raw(array: Array) -> memoryview:
    """The bytes of an array that is contiguous."""
    return array.reshape(-1).view(np.uint8).data


def _rest(views: Sequence[memoryview], done: int) -> Sequence[memoryview]:
    """What is left to write after so many bytes."""
    for number, view in enumerate(views):
        if done < len(view):
            return [view[done:], *views[number + 1 :]]
        done -= len(view)
    return ()


def _line(key: str, spec: Spec, begin: int, end: int) -> bytes:
    """A tensor's line in the header. A type without a name in safetensors is bytes."""
    shape, dtype = spec
    code = _CODES.get(name_of(dtype))
    if code is None:
        code, shape = "U8", (*shape, dtype.itemsize)
    line = f',{quoted(key)}:{{"dtype":"{code}","shape":{lengths(shape)},"data_offsets":[{begin},{end}]}}'
    return line.encode()


@lru_cache(maxsize=1)
def _allocator() -> Callable[[int, int, int, int], int] | None:
    """Linux's ``fallocate``, where there is one. Python's own changes the size that a file seems to have."""
    found = getattr(ctypes.CDLL(None), "fallocate", None)
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return found
