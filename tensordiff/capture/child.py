"""The child process that runs sources, as the parent holds it, and the child that is kept for the next run.

The child is started as ``PYTHON -m tensordiff.capture.process KIND FD``, followed by ``reusable`` if it is to answer
more than one job. It reads jobs from its standard input, one a line. The parent keeps that pipe open; when it closes,
the parent is gone and the child ends itself. Events come over a pipe of their own, so that output of a framework is
never mistaken for an event; that output is kept as the log. The child leads a process group, and whatever is left of
the group at the end is killed.

Importing a framework and loading a model take most of the time of a run. A caller that makes several runs of one source
holds a ``ReusableChild``, passes it to each ``Run`` and closes it at the end. It holds at most one child, so at most
one model stays in memory. A child whose run failed, was cancelled or crashed is not used again. The child itself
decides whether its model is still what a new process would load: see ``process.reusable_engine``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import IO, Self

import tensordiff
from tensordiff.capture.engines import ENGINES, ENVIRONMENT_COMMAND, environment_command
from tensordiff.capture.events import Event, decode
from tensordiff.capture.interpreter import interpreter
from tensordiff.capture.job import Job
from tensordiff.capture.process.disk_space import SCRATCH
from tensordiff.capture.provenance import INPUT_SETTINGS
from tensordiff.capture.settings import Settings
from tensordiff.errors import CaptureError, printable
from tensordiff.util.temporary_folders import make_temporary_folder, remove_temporary_folder


class Child:
    """A process that runs sources of one kind."""

    def __init__(self, job: Job, *, is_reusable: bool = False) -> None:
        """Start a process that can run a job; the job itself is sent later."""
        self.job, self.is_reusable = job, is_reusable
        self.jobs_sent = 0
        """How many jobs it was sent."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the child lives
        self._folder = make_temporary_folder()
        read_end, write_end = os.pipe()
        try:
            self._process = self._start(write_end)
        except BaseException:
            os.close(read_end)
            self._log.close()
            remove_temporary_folder(self._folder)
            raise
        finally:
            os.close(write_end)
        self._events = os.fdopen(read_end, "rb")

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its process group."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process is still running."""
        return self._process.poll() is None

    @property
    def status(self) -> int:
        """The exit status of the process; a negative number is the signal that ended it."""
        return self._process.wait()

    def send(self, job: Job) -> None:
        """Send a job. If the child is already gone, its events end at once."""
        self.jobs_sent += 1
        _send(self._process.stdin, job.encode())

    def events(self) -> Iterator[Event]:
        """The child's events, until it ends."""
        with suppress(ValueError, OSError):  # another thread may close the pipe
            for line in self._events:
                yield decode(line)

    def end(self, grace_s: float, *, terminate: bool = False) -> None:
        """End the child and its process group after giving it ``grace_s`` to end by itself.

        With ``terminate``, SIGTERM is sent first.
        """
        process = self._process
        if terminate:
            _signal(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
        _signal(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        remove_temporary_folder(self._folder)

    def close(self) -> None:
        """Close the log and the pipe of events."""
        self._log.close()
        self._events.close()

    @property
    def is_closed(self) -> bool:
        """Whether the log and the pipe are closed."""
        return self._log.closed

    @property
    def log_bytes(self) -> int:
        """The size of the child's output so far."""
        return os.fstat(self._log.fileno()).st_size

    def log(self, since: int = 0) -> str:
        """The child's output, from byte ``since`` on."""
        return os.pread(self._log.fileno(), self.log_bytes - since, since).decode("utf-8", "replace")

    def _start(self, events_end: int) -> subprocess.Popen[bytes]:
        python = self.python = interpreter(self.job.source.kind, self.job.settings.python)
        # The import path gets a link to this package alone: other packages beside it must not shadow those of the
        # child's interpreter.
        (self._folder / "package").mkdir()
        (self._folder / "package" / "tensordiff").symlink_to(Path(tensordiff.__file__).resolve().parent)
        (self._folder / "scratch").mkdir()
        command = [python, "-m", "tensordiff.capture.process", self.job.source.kind, str(events_end)]
        try:
            return subprocess.Popen(  # noqa: S603 - the interpreter the user named
                [*command, "reusable"] if self.is_reusable else command,
                stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, pass_fds=(events_end,),
                env=self._environment(), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise CaptureError(
                f"{printable(python)}: cannot be run ({(error.strerror or str(error)).lower()}); "
                "give --python an interpreter that has the framework installed"
            ) from error

    def _environment(self) -> dict[str, str]:
        paths = (str(self._folder / "package"), os.environ.get("PYTHONPATH", ""))
        path = os.pathsep.join(filter(None, paths))
        # Keep files in the current folder from being imported instead of a framework.
        imports = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
        for_child = {SCRATCH: str(self._folder / "scratch")}
        kind = self.job.source.kind
        if ENGINES[kind].has_environment:
            for_child[ENVIRONMENT_COMMAND] = environment_command(kind)
        return os.environ | imports | for_child


def _send(pipe: IO[bytes] | None, line: str) -> None:
    if pipe is not None:
        with suppress(BrokenPipeError):
            pipe.write(f"{line}\n".encode())
            pipe.flush()


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


JOB_SETTINGS = (*INPUT_SETTINGS, "layers", "leaves", "no_inputs", "max_bytes", "ops", "inject", "force")
"""Settings that may differ between the jobs of one child. All others affect what is loaded."""


class ReusableChild:
    """Holds at most one child that waits for another job."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: Child | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, job: Job) -> Child:
        """Return the waiting child if it can run this job; otherwise end it and start a new one."""
        with self._lock:
            child, self._waiting = self._waiting, None
        if child is not None:
            if child.is_alive and _load_settings(child.job) == _load_settings(job):
                return child
            _dismiss(child)
        return Child(job, is_reusable=ENGINES[job.source.kind].is_reusable)

    def give_back(self, child: Child) -> bool:
        """Keep a child whose job is done. Returns False if it is not kept; the caller must then end it."""
        with self._lock:
            if self._is_closed or self._waiting is not None or not child.is_reusable:
                return False
            self._waiting = child
            return True

    def close(self) -> None:
        """End the waiting child and keep none from now on."""
        with self._lock:
            child, self._waiting, self._is_closed = self._waiting, None, True
        if child is not None:
            _dismiss(child)


def _dismiss(child: Child) -> None:
    child.end(grace_s=0)
    child.close()


def _load_settings(job: Job) -> Job:
    """A copy of the job with only the settings that affect what is loaded."""
    usual = Settings()
    settings = replace(job.settings, **{name: getattr(usual, name) for name in JOB_SETTINGS})
    return Job(job.source, settings, "")
