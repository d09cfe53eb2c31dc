"""The size of a dump: the budget of ``--max-bytes``, the free space on the disk; and a folder for scratch files.

A dump that reaches its budget holds the beginning of the run without gaps: after the first tensor that does not fit,
none is written.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tensordiff.capture.events import Note, Tell
from tensordiff.capture.job import Job
from tensordiff.errors import CaptureError, printable
from tensordiff.util.sizes import format_bytes

_SPARE = 64 << 20  # bytes that are always left free
SCRATCH = "TENSORDIFF_SCRATCH"
"""The environment variable through which the parent passes a folder for scratch files."""


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder for the length of a block. The parent removes it if this process is killed."""
    return tempfile.TemporaryDirectory(prefix="tensordiff-", dir=os.environ.get(SCRATCH))


@dataclass
class Budget:
    """Counts the bytes that may be written, and the tensors that were left out, by reason."""

    max_bytes: int | None = None
    wanted: int = 0
    """Bytes requested so far, including tensors that did not fit."""
    left_out: dict[str, int] = field(default_factory=dict)

    def allows(self, nbytes: int) -> bool:
        """Whether a tensor of so many bytes may be written; if not, it is counted as left out."""
        self.wanted += nbytes
        if self.max_bytes is None or self.wanted <= self.max_bytes:
            return True
        self.leave_out(f"--max-bytes {self.max_bytes} was reached")
        return False

    def leave_out(self, why: str) -> None:
        """Count a tensor that is not written."""
        self.left_out[why] = self.left_out.get(why, 0) + 1

    def notes(self) -> list[str]:
        """Notes on what was left out."""
        return [f"{count} tensors were left out: {why}" for why, count in self.left_out.items()]


def check_job_size(job: Job, nbytes: int | None, tell: Tell) -> None:
    """Report how much a job will write at most and how much space is free; refuses what will not fit."""
    if job.writes != "dump":
        return  # a listing takes no space, and a stream no more than its window
    sizes = [size for size in (nbytes, job.settings.max_bytes) if size is not None]
    tell(Note(check_disk(Path(job.output), min(sizes, default=None), force=job.settings.force)))


def check_disk(folder: Path, nbytes: int | None, *, force: bool) -> str:
    """A sentence on size and free space; raises ``CaptureError`` if it will not fit."""
    free = shutil.disk_usage(_nearest(folder)).free
    size = "how much will be written is not known" if nbytes is None else f"about {format_bytes(nbytes)} to write"
    sentence = f"{size}, {format_bytes(free)} free"
    if (nbytes or 0) + _SPARE > free and not force:
        raise CaptureError(
            f"{printable(folder)}: {sentence}; write elsewhere, capture less with --layers, --leaves or --no-inputs, "
            "or go ahead with --force"
        )
    return sentence


def _nearest(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    return next((path for path in (folder, *folder.resolve().parents) if path.is_dir()), Path("/"))
