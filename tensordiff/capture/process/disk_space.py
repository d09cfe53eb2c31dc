"""How much a dump may take: the budget of ``--max-bytes``, whether the disk has room; and a folder for scratch files.

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

_SPARE = 64 << 20  # left free whatever happens
SCRATCH = "TENSORDIFF_SCRATCH"
"""The environment variable by which the parent names a folder for scratch files."""


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for the length of a block. The parent removes it where this process is killed."""
    return tempfile.TemporaryDirectory(prefix="tensordiff-", dir=os.environ.get(SCRATCH))


@dataclass
class Budget:
    """Bytes that may be written, and how many tensors were left out, by reason."""

    max_bytes: int | None = None
    wanted: int = 0
    """Bytes asked for so far, with those that did not fit."""
    left_out: dict[str, int] = field(default_factory=dict)

    def allows(self, nbytes: int) -> bool:
        """Whether a tensor of so many bytes more is written; where not, it is counted as left out."""
        self.wanted += nbytes
        if self.max_bytes is None or self.wanted <= self.max_bytes:
            return True
        self.leave_out(f"--max-bytes {self.max_bytes} was reached")
        return False

    def leave_out(self, why: str) -> None:
        """Count a tensor that is not written."""
        self.left_out[why] = self.left_out.get(why, 0) + 1

    def notes(self) -> list[str]:
        """What was left out, as sentences."""
        return [f"{count} tensors were left out: {why}" for why, count in self.left_out.items()]


def check_job_size(job: Job, nbytes: int | None, tell: Tell) -> None:
    """Tell how much a job will write at most and how much room there is; refuse it where it will not fit."""
    if job.writes != "dump":
        return  # what is listed takes no room, and what is streamed no more than its window
    sizes = [size for size in (nbytes, job.settings.max_bytes) if size is not None]
    tell(Note(check_disk(Path(job.output), min(sizes, default=None), force=job.settings.force)))


def check_disk(folder: Path, nbytes: int | None, *, force: bool) -> str:
    """A sentence on size and free space; raises where it will not fit."""
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
