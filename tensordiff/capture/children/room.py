"""Whether a dump will fit: its size and the room there is, before anything is written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tensordiff.capture.events import Event, Note
from tensordiff.capture.job import Job
from tensordiff.errors import CaptureError, printable

_SPARE = 64 << 20  # left free whatever happens


def tell_room(job: Job, nbytes: int, tell: Callable[[Event], None]) -> None:
    """Say how much a job will write at most, and the room there is; refuses where it will not fit."""
    size = nbytes if job.settings.max_bytes is None else min(nbytes, job.settings.max_bytes)
    tell(Note(check_disk(Path(job.output), size, force=job.settings.force)))


def check_disk(folder: Path, nbytes: int, *, force: bool) -> str:
    """A sentence on size and room; refuses where it will not fit."""
    free = shutil.disk_usage(_nearest(folder)).free
    sentence = f"about {shown(nbytes)} to write, {shown(free)} free"
    if nbytes + _SPARE > free and not force:
        raise CaptureError(
            f"{printable(folder)}: {sentence}; write elsewhere, capture less with --layers, --leaves or --no-inputs, "
            "or go ahead with --force"
        )
    return sentence


def shown(nbytes: float) -> str:
    """Bytes for people."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    return next((path for path in (folder, *folder.resolve().parents) if path.is_dir()), Path("/"))
