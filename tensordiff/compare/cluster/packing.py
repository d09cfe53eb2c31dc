"""Pack work for workers: where the bytes of each pair are, never the bytes themselves.

An entry is pickled as the path of its file, its offset, shape and type. Paths are made absolute, since a worker has
another current folder. Mapped files and zip directories are opened again when they are unpacked.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from pathlib import Path, PurePath
from typing import Any

from tensordiff.compare.pair_task import PairWork
from tensordiff.dump.files import FileVersion, MappedFile, open_buffer
from tensordiff.dump.readers.torch.archive import Archive, open_archive
from tensordiff.dump.readers.torch.reader import TorchFile
from tensordiff.dump.zip_files import ZipMap, map_zip
from tensordiff.util.remote import RemotePath, is_url, user_path

_OPEN_FILES = 64


class CannotBeSent(Exception):
    """The tensor exists only in this process's memory."""


def pack(work: object) -> bytes:
    """Pack work for a worker; raises ``CannotBeSent`` if its values are not in a file."""
    out = BytesIO()
    try:
        _Packer(out, protocol=pickle.HIGHEST_PROTOCOL).dump(work)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise CannotBeSent(str(error)) from error
    return out.getvalue()


def unpack(data: bytes) -> Any:
    """Unpack what a client packed. A worker trusts its client as a shell trusts its user."""
    return pickle.loads(data)  # noqa: S301 - sent by the client that the worker obeys anyway


def split_by_sendable(works: Sequence[PairWork]) -> tuple[list[PairWork], list[PairWork]]:
    """Split pairs into those that can be sent and those that cannot."""
    sent: list[PairWork] = []
    kept: list[PairWork] = []
    for work in works:
        try:
            pack(work)
            sent.append(work)
        except CannotBeSent:
            kept.append(work)
    return sent, kept


class _Packer(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, RemotePath):
            return user_path, (str(obj),)
        if isinstance(obj, PurePath):
            return Path, (_absolute(obj),)
        if type(obj) is MappedFile:
            return _shared_file, (obj.path, obj.version)
        if type(obj) is TorchFile:
            return _torch_file, (_absolute(obj.folder), obj.file)
        if type(obj) is Archive:
            return _shared_archive, (_absolute(obj.path),)
        if type(obj) is ZipMap:
            return _shared_zip, (_absolute(obj.path),)
        return NotImplemented


def _absolute(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    return text if is_url(text) else os.path.abspath(text)  # noqa: PTH100 - links are not resolved


# Many batches name the same few files, so each file is mapped once.


@lru_cache(_OPEN_FILES)
def _shared_file(path: Path, version: FileVersion | None) -> MappedFile:
    return MappedFile(path, version)


def _torch_file(folder: str, file: str) -> TorchFile:
    if is_url(folder):
        user_path(folder)
    return TorchFile(folder, file)


def _shared_archive(path: str) -> Archive:
    user_path(path)
    return _archive_of(path, _modified_ns(path))


def _shared_zip(path: str) -> ZipMap:
    where = user_path(path)
    return _zip_of(where, _modified_ns(path))


@lru_cache(8)
def _archive_of(path: str, _modified_ns: int) -> Archive:
    return open_archive(path)


@lru_cache(_OPEN_FILES)
def _zip_of(path: Path, _modified_ns: int) -> ZipMap:
    return map_zip(open_buffer(path), path)


def _modified_ns(path: str) -> int:
    """The modification time of a file, so that a replaced file is opened again."""
    try:
        return user_path(path).stat().st_mtime_ns
    except OSError:
        return 0
