"""Writes a dump where ``-o`` says. A dump for a store is written locally first, and uploaded when it is complete."""

from __future__ import annotations

from pathlib import Path

from tensordiff.cli.progress import Progress
from tensordiff.dump.native.publish import publish, refuse_occupied
from tensordiff.util.remote import RemotePath
from tensordiff.util.temporary_folders import make_temporary_folder, remove_temporary_folder


def path_to_write(output: Path, *, overwrite: bool) -> Path:
    """The path to write a dump to: ``output`` itself, or a path in a temporary folder if that is a URL."""
    if not isinstance(output, RemotePath):
        return output
    refuse_occupied(output, overwrite=overwrite)
    return make_temporary_folder() / output.name


def upload(written: Path, output: Path) -> None:
    """Upload what was written to the store of ``output``; does nothing if that is a local path."""
    if not isinstance(output, RemotePath):
        return
    count = 1 if written.is_file() else sum(1 for _ in written.iterdir())
    with Progress(f"sending to {output}", count) as progress:
        for _ in progress.over(publish(written, output)):
            pass
    remove_temporary_folder(written.parent)
