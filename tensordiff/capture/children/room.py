"""Whether a dump will fit: its size and the room there is, before anything is written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tensordiff.capture.events import Event, Note
from tensordiff.capture.job import Job
from tensordiff.errors import CaptureError, printable
from tensordiff.sizes import bytes_said

_SPARE = 64 << 20  # left free whatever happens


def tell_room(job: Job, nbytes: int | None, tell: Callable[[Event], None]) -> None:
    """Say how much a job will write at most, and the room there is; refuses where it will not fit."""
    sizes = [size for size in (nbytes, job.settings.max_bytes) if size is not None]
    tell(Note(check_disk(Path(job.output), min(sizes, default=None), force=job.settings.force)))


def check_disk(folder: Path, nbytes: int | None, *, force: bool) -> str:
    """A sentence on size and room; refuses where it will not fit."""
    free = shutil.disk_usage(_nearest(folder)).free
    size = "how much will be written is not known" if nbytes is None else f"about {bytes_said(nbytes)} to write"
    sentence = f"{size}, {bytes_said(free)} free"
    if (nbytes or 0) + _SPARE > free and not force:
        raise CaptureError(
            f"{printable(folder)}: {sentence}; write elsewhere, capture less with --layers, --leaves or --no-inputs, "
            "or go ahead with --force"
        )
    return sentence


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    return next((path for path in (folder, *folder.resolve().parents) if path.is_dir()), Path("/"))
