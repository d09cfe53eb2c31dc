"""Uploading files to a store and removing them. The store's own library sends them in parts; failures are retried."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from tensordiff.errors import BadFile, StoreError, WriteError, printable
from tensordiff.util.remote.paths import RemotePath
from tensordiff.util.remote.store import HTTP, attempt, forget, place


def refuse_web(target: RemotePath) -> None:
    """Refuse a target on a web server, before anything is made that would have to be sent there."""
    if target.parts[0] in HTTP:
        raise WriteError(
            f"{printable(target)}: is on a web server, and these are only read; write to a folder, or to a store such "
            "as s3://"
        )


def upload(files: Iterable[Path], folder: RemotePath) -> Iterator[Path]:
    """Write files into a folder of a store, in order; each is yielded once the store has it."""
    for file in files:
        upload_file(file, folder / file.name)
        yield file
    forget(folder)


def upload_file(file: Path, target: RemotePath) -> None:
    """Write one file."""
    filesystem, name = place(target)
    try:
        attempt(target, "write", lambda: filesystem.put_file(os.fspath(file), name))
    except (BadFile, FileNotFoundError) as error:
        why = error.problem if isinstance(error, BadFile) else "the store takes no files, or has no such bucket"
        raise WriteError(f"{printable(target)}: cannot be written: {printable(why)}") from error
    except StoreError as error:
        raise WriteError(f"{error}; it is not written") from error


def remove(paths: Iterable[RemotePath]) -> None:
    """Remove files from a store."""
    for path in paths:
        filesystem, name = place(path)
        attempt(path, "write", lambda filesystem=filesystem, name=name: filesystem.rm_file(name))  # type: ignore[misc]
