"""The content of one file of ``torch.save``, and where the bytes of its tensors lie.

Two layouts are read: the zip that torch writes since 1.6, and the sequence of pickles before it. Both become an
``Archive``. How tensors are named is decided in ``reader``; nothing else looks inside a torch file.
"""

from __future__ import annotations

import os
from functools import lru_cache
from struct import Struct
from typing import NamedTuple, Protocol

import numpy as np

from tensordiff.dump.dtypes import Array
from tensordiff.dump.files import Buffer, Bytes, in_memory, open_buffer, refuse_beyond_memory, view_buffer
from tensordiff.dump.readers.torch.layouts import Layouts
from tensordiff.dump.readers.torch.numpy_values import PickledArray
from tensordiff.dump.readers.torch.pickle import MAX_PICKLE_BYTES, PickleContents, unpickle
from tensordiff.dump.readers.torch.tensors import BadPickle, Storage, Tensor, shorten
from tensordiff.dump.zip_files import MEMBER_MAGIC, Span, ZipMap, map_zip
from tensordiff.errors import BadFile

FilePath = str | os.PathLike[str]

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001
_LEGACY_MARK = _LEGACY_MAGIC.to_bytes(10, "little")
_COUNT = Struct("<q")
_CACHE_BELOW = 2048


class Storages(Protocol):
    """Where the bytes of a file's storages lie."""

    @property
    def big_endian(self) -> bool:
        """Whether the high byte comes first."""

    def find(self, key: str) -> Span:
        """The bytes of a storage."""


class Archive(NamedTuple):
    """A torch file, mapped: its content as the pickle describes it, and where its storages are."""

    path: FilePath
    buffer: Buffer
    value: object
    storages: Storages

    def read(self, tensor: Tensor | PickledArray) -> Array:
        """A tensor's values, read-only, mapped if no bytes need to change."""
        if isinstance(tensor, PickledArray):
            return tensor.read(self.buffer, self.path)
        if tensor.strides is not None or tensor.conjugate or tensor.negative:
            self._refuse_beyond_memory(tensor)
        buffer, offset = self._bytes_of(tensor)
        values = view_buffer(buffer, self.path, offset, tensor.spec, tensor.strides)
        if tensor.conjugate:
            values = np.conjugate(values)
        if tensor.negative:
            values = np.negative(values)
        if values.flags.writeable:
            values.flags.writeable = False
        return values

    def teach(self, layouts: Layouts) -> None:
        """Have files recognised that are laid out as this one, if it is a zip of one tensor."""
        if isinstance(self.storages, _ZipStorages) and isinstance(self.value, Tensor):
            layouts.learn(self.storages.zipped, self.storages.folder, self.value)

    def _refuse_beyond_memory(self, tensor: Tensor) -> None:
        """Refuse a tensor for which memory is too small, if it must be copied or is larger than its storage."""
        nbytes, stored = tensor.spec.nbytes, tensor.storage.nbytes
        if tensor.conjugate or tensor.negative or nbytes > stored:
            what = f"a tensor of shape {list(tensor.spec.shape)!s:.120} takes"
            refuse_beyond_memory(self.path, what, nbytes, "save a smaller view of it, or its .contiguous()")

    def _bytes_of(self, tensor: Tensor) -> tuple[Buffer, int]:
        """A buffer, and where in it a tensor starts."""
        if 0 in tensor.spec.shape:
            return b"", 0
        storage, offset = tensor.storage, tensor.offset * tensor.spec.dtype.itemsize
        start, size = self.storages.find(storage.key)
        if size < storage.nbytes:
            raise BadFile(
                self.path,
                f"holds {size} of {storage.nbytes} bytes of its storage {shorten(storage.key)!r}; "
                "it is truncated or damaged; dump it again",
            )
        if self.storages.big_endian:
            what = "a storage in this machine's byte order takes"
            refuse_beyond_memory(self.path, what, 2 * storage.nbytes, "save its tensors one by one")
            return _swap(self.buffer[start : start + storage.nbytes], tensor), offset
        return self.buffer, start + offset


def _swap(data: bytes, tensor: Tensor) -> bytes:
    """Big-endian bytes as little-endian. A complex number is two numbers."""
    dtype = tensor.spec.dtype
    width = dtype.itemsize // (2 if dtype.kind == "c" else 1)
    whole = len(data) - len(data) % width
    return np.frombuffer(data[:whole], f"u{width}").byteswap().tobytes()


def open_archive(path: FilePath) -> Archive:
    """Open a torch file: read its pickle, map the rest."""
    return open_archive_bytes(path, open_buffer(path))


def open_archive_bytes(path: FilePath, buffer: Buffer) -> Archive:
    """Open a torch file that lies in memory, or within another file."""
    try:
        if buffer[:4] == MEMBER_MAGIC:
            return _open_zip(path, buffer)
        if is_legacy(buffer[:64]):
            return _open_legacy(path, in_memory(buffer))
    except BadPickle as error:
        raise BadFile(path, str(error)) from error
    raise BadFile(path, _why_not_torch(buffer))


def is_legacy(head: bytes) -> bool:
    """Whether a file starts like those of torch before 1.6."""
    return head[:1] == b"\x80" and _LEGACY_MARK in head[:32]


def _open_zip(path: FilePath, buffer: Buffer) -> Archive:
    zipped = map_zip(buffer, path)
    # All members lie in one folder, which has the name of the file when it was saved.
    folder = next(iter(zipped.rows), b"").partition(b"/")[0]
    if folder + b"/data.pkl" not in zipped.rows:
        raise BadFile(path, "is a zip file without a data.pkl; it was not written by torch.save")
    if folder + b"/constants.pkl" in zipped.rows:
        raise BadFile(path, "is a TorchScript program, not a dump; run it and torch.save what it gives")
    start, size = zipped.span(folder + b"/data.pkl")
    is_long = size > MAX_PICKLE_BYTES  # numpy arrays lie within it
    value = unpickle(in_memory(buffer), start).value if is_long else _unpickle(buffer[start : start + size], start)
    return Archive(path, buffer, value, _ZipStorages(zipped, folder))


class _ZipStorages(NamedTuple):
    zipped: ZipMap
    folder: bytes

    @property
    def big_endian(self) -> bool:
        """Whether the file says so. Torch before 2.1 did not, and ran on little-endian machines."""
        name = self.folder + b"/byteorder"
        if name not in self.zipped.rows:
            return False
        start, size = self.zipped.span(name)
        order = self.zipped.buffer[start : start + min(size, 8)]
        if order not in (b"little", b"big"):
            raise BadFile(self.zipped.path, "names a byte order that is neither little nor big; dump it again")
        return order == b"big"

    def find(self, key: str) -> Span:
        return self.zipped.span(self.folder + b"/data/" + key.encode("utf-8", "surrogatepass"))


def _unpickle(data: bytes, at: int) -> object:
    return _unpickle_cached(data) if len(data) < _CACHE_BELOW else unpickle(data, base=at).value


@lru_cache(maxsize=256)
def _unpickle_cached(data: bytes) -> object:
    """Cached, since the files of a print hook differ only in values: those of one shape have the same pickle."""
    return unpickle(data).value


def _open_legacy(path: FilePath, buffer: Bytes) -> Archive:
    magic = unpickle(buffer)
    protocol = unpickle(buffer, magic.end)
    if (magic.value, protocol.value) != (_LEGACY_MAGIC, _LEGACY_PROTOCOL):
        raise BadPickle("has the header of an old torch file of a kind we do not know")
    system = unpickle(buffer, protocol.end)  # describes the machine that wrote it; the bytes are always little-endian
    content = unpickle(buffer, system.end)
    spans = _legacy_spans(buffer, content, unpickle(buffer, content.end))
    return Archive(path, buffer, content.value, _LegacyStorages(spans))


class _LegacyStorages(NamedTuple):
    spans: dict[str, Span]
    big_endian: bool = False

    def find(self, key: str) -> Span:
        return self.spans[key]


def _legacy_spans(buffer: Bytes, content: PickleContents, keys: PickleContents) -> dict[str, Span]:
    """Where each storage lies: they follow the pickles in the order of their keys, each after its count."""
    spans: dict[str, Span] = {}
    at = keys.end
    for key in _check_keys(keys.value, content):
        spans[key] = _legacy_span(buffer, at, content.storages[key])
        at = spans[key].start + spans[key].size
    return spans


def _check_keys(keys: object, content: PickleContents) -> list[str]:
    known = content.storages
    if type(keys) is not list or not all(type(key) is str and key in known for key in keys):
        raise BadPickle("lists other storages than its tensors use; dump it again")
    if not len(keys) == len(set(keys)) == len(known):
        raise BadPickle("does not list each of its storages once; dump it again")
    return keys


def _legacy_span(buffer: Bytes, at: int, storage: Storage) -> Span:
    start = at + _COUNT.size
    if start + storage.nbytes > len(buffer) or _COUNT.unpack_from(buffer, at)[0] != storage.count:
        raise BadPickle(f"its storage {shorten(storage.key)!r} is truncated or damaged; dump it again")
    return Span(start, storage.nbytes)


def _why_not_torch(buffer: Buffer) -> str:
    if not buffer:
        return "is empty; dump it again"
    if buffer[257:262] == b"ustar":
        return "is a tar file, as torch wrote before 0.1.10; load it with torch and torch.save it again"
    if buffer[:1] == b"\x80":
        return "is a pickle that torch.save did not write; where it was made, torch.save its tensors"
    if buffer[:8] == b"version ":
        return "is a pointer to a file that Git LFS keeps; run: git lfs pull"
    return "is not a file of torch.save, or is truncated; dump it again"
