"""One child process as the parent holds it: started, given jobs, heard, and ended for certain.

The child is ``PYTHON -m tensordiff.capture.children KIND FD``, with ``stay`` behind it where it is to answer more than
one job. Jobs come on its standard input, a line each, and that pipe stays open: when it closes, the parent is gone and
the child ends itself. Events come on a pipe of their own, so nothing that a framework prints can be taken for one; what
it prints is kept as the log. The child leads a process group, and whatever is left of that group at the end is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import tensordiff
from tensordiff.capture.events import Event, decode
from tensordiff.capture.job import Job
from tensordiff.errors import CaptureError, printable


class Child:
    """A process that runs sources of one kind."""

    def __init__(self, job: Job, *, stays: bool = False) -> None:
        """Start what can answer a job; it is not given the job yet."""
        self.job, self.stays = job, stays
        self.jobs = 0
        """How many it was given."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the child
        self._shelf = Path(tempfile.mkdtemp(prefix="tensordiff-"))
        told, tell = os.pipe()
        try:
            self._process = self._start(tell)
        except BaseException:
            os.close(told)
            self._log.close()
            self._forget()
            raise
        finally:
            os.close(tell)
        self._told = os.fdopen(told, "rb")

    @property
    def pid(self) -> int:
        """Its process id, which is its group's too."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def status(self) -> int:
        """How it ended: below 0, by which signal."""
        return self._process.wait()

    def send(self, job: Job) -> None:
        """Give it a job. A child that is gone already will be found so when it is listened to."""
        self.jobs += 1
        _send(self._process.stdin, job.encode())

    def events(self) -> Iterator[Event]:
        """What it says, until it ends."""
        with suppress(ValueError, OSError):  # closed under our hands, from another thread
            for line in self._told:
                yield decode(line)

    def end(self, grace_s: float, *, asks: bool = False) -> None:
        """Leave no process behind; first let it leave by itself for a moment, asking it to if so wished."""
        process = self._process
        if asks:
            _signal(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
        _signal(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        self._forget()

    def close(self) -> None:
        """Let go of all files."""
        self._log.close()
        self._told.close()

    @property
    def is_closed(self) -> bool:
        """Whether its files are let go of."""
        return self._log.closed

    @property
    def printed(self) -> int:
        """How many bytes it printed so far."""
        return os.fstat(self._log.fileno()).st_size

    def log(self, since: int = 0) -> str:
        """What it printed, from so many bytes on."""
        return os.pread(self._log.fileno(), self.printed - since, since).decode("utf-8", "replace")

    def _start(self, tell: int) -> subprocess.Popen[bytes]:
        python = self.job.settings.python or sys.executable
        # A link to the package alone: its neighbours must not hide those of another interpreter.
        (self._shelf / "tensordiff").symlink_to(Path(tensordiff.__file__).resolve().parent)
        command = [python, "-m", "tensordiff.capture.children", self.job.source.kind, str(tell)]
        try:
            return subprocess.Popen(  # noqa: S603 - the interpreter the user named
                [*command, "stay"] if self.stays else command,
                stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, pass_fds=(tell,),
                env=self._environment(), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise CaptureError(
                f"{printable(python)}: cannot be run ({(error.strerror or str(error)).lower()}); "
                "give --python an interpreter that has the framework installed"
            ) from error

    def _environment(self) -> dict[str, str]:
        paths = (str(self._shelf), os.environ.get("PYTHONPATH", ""))
        path = os.pathsep.join(filter(None, paths))
        # What lies in the current folder must not be imported instead of a framework.
        return os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}

    def _forget(self) -> None:
        shutil.rmtree(self._shelf, ignore_errors=True)


def _send(pipe: IO[bytes] | None, line: str) -> None:
    if pipe is not None:
        with suppress(BrokenPipeError):
            pipe.write(f"{line}\n".encode())
            pipe.flush()


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
