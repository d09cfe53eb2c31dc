"""Sending a dump to a store: shards first, manifest last.

Stores cannot append, so a dump is written to a temporary folder and then sent. Until the manifest is there, nobody
takes the target for a dump; the manifest of an earlier dump is removed first. If sending fails, the local files stay,
and the error says where.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tensordiff.dump.native.manifest import JOURNAL, MANIFEST, is_shard_name
from tensordiff.errors import TensordiffError, WriteError, printable
from tensordiff.util.remote import RemotePath
from tensordiff.util.remote.store import forget, listing
from tensordiff.util.remote.upload import refuse_web, remove, upload, upload_file
from tensordiff.util.temporary_folders import keep_temporary_folder


def refuse_occupied(target: RemotePath, *, overwrite: bool) -> None:
    """Refuse a web server, or a place where something lies already; an earlier dump of ours may be overwritten."""
    refuse_web(target)
    names = _names(target)
    if not names and not target.is_file():
        return
    is_dump = MANIFEST in names or JOURNAL in names
    if not overwrite:
        what = "holds a dump already" if is_dump else "is there already"
        raise WriteError(f"{printable(target)}: {what}; choose a new place, or overwrite it with --force")
    if names and not is_dump:
        raise WriteError(f"{printable(target)}: holds other files than those of a dump; choose a new place")


def publish(source: Path, target: RemotePath) -> Iterator[Path]:
    """Send a dump's folder, or one file, to a store; each file is yielded once it is there."""
    try:
        if source.is_file():
            upload_file(source, target)
            yield source
            return
        files = sorted(source.iterdir(), key=lambda file: (file.name in (MANIFEST, JOURNAL), file.name))
        _remove_earlier(target)
        yield from upload(files, target)
    except TensordiffError as error:
        keep_temporary_folder(source)
        raise WriteError(f"{error}; what was to be sent lies in {printable(source)}") from error


def _remove_earlier(target: RemotePath) -> None:
    """Remove an earlier dump, its manifest first, so that half of it is never taken for a whole."""
    names = _names(target)
    ours = [name for name in (MANIFEST, JOURNAL) if name in names] + [name for name in names if is_shard_name(name)]
    remove(target / name for name in ours)


def _names(target: RemotePath) -> list[str]:
    forget(target)
    if not target.is_dir():
        return []
    return list(listing(target))
