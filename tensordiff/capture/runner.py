"""A child process that runs a source, as the parent sees it: a job in, events out, and an end for certain.

The child is ``PYTHON -m tensordiff.capture.children KIND FD``. It is given its job on standard input, and that
pipe stays open: when it closes, the parent is gone and the child ends itself. Events come on a pipe of their own,
so nothing that a framework prints can be taken for one; what it prints is kept as the log. The child leads a
process group, and whatever is left of that group when the run is over is killed.
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
from types import TracebackType
from typing import IO, Self

import tensordiff
from tensordiff.capture.events import Done, Event, Failed, Phase, decode
from tensordiff.capture.job import Job
from tensordiff.dump.manifest import JOURNAL, MANIFEST
from tensordiff.errors import CaptureError, printable

_GRACE_S = 3.0  # how long a child may take to end by itself
_TAIL = 6000  # characters of the log that go with a failure
_LOG_KEPT = 1 << 20
_HINTS = {
    "SIGKILL": "; the system may have run out of memory",
    "SIGSEGV": "; it crashed inside the framework",
    "SIGILL": "; the processor refused an instruction: for bfloat16 on a virtual machine try the environment "
    "variable ONEDNN_MAX_CPU_ISA=AVX512_CORE",
}


class Run:
    """A source being run. Iterate for its events; the last is ``Done`` or ``Failed``."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.is_cancelled = False
        self._is_heard, self._kept_log = False, ""
        self._phase = "starting"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the run
        self._shelf = Path(tempfile.mkdtemp(prefix="tensordiff-"))
        told, tell = os.pipe()
        try:
            self._process = self._start(tell)
        except BaseException:
            os.close(told)
            self._forget()
            raise
        finally:
            os.close(tell)
        self._told = os.fdopen(told, "rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
        self._told.close()
        self._log.close()

    def __iter__(self) -> Iterator[Event]:
        self._is_heard = True
        try:
            yield from self._until_end()
        finally:
            self._is_heard = False
            self.cancel()

    def _until_end(self) -> Iterator[Event]:
        for event in self._events():
            if isinstance(event, Phase):
                self._phase = event.name
            if isinstance(event, Done | Failed):
                self._end()
                yield event
                return
            yield event
        self._end()
        yield self._died()

    def result(self) -> Done:
        """Run to the end, listening to nothing; raises ``CaptureError`` where it failed."""
        for event in self:
            if isinstance(event, Done):
                return event
            if isinstance(event, Failed):
                raise CaptureError(event.sentence)
        raise CaptureError(f"{printable(self.job.source)}: was listened to already")

    def cancel(self) -> None:
        """End the child and all that it started, now. From any thread; does nothing where it has ended."""
        if self._process.poll() is None:
            self.is_cancelled = True
        self._end(grace_s=0.5)
        if not self._is_heard:  # else whoever listens has the pipe in hand, and lets go of it
            self._close()

    def log(self) -> str:
        """What the child printed so far."""
        if self._log.closed:
            return self._kept_log
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode("utf-8", "replace")

    @property
    def pid(self) -> int:
        """The child's process id, which is its group's too."""
        return self._process.pid

    def _start(self, tell: int) -> subprocess.Popen[bytes]:
        python = self.job.settings.python or sys.executable
        # A link to the package alone: its neighbours must not hide those of another interpreter.
        (self._shelf / "tensordiff").symlink_to(Path(tensordiff.__file__).resolve().parent)
        try:
            process = subprocess.Popen(  # noqa: S603 - the interpreter the user named
                [python, "-m", "tensordiff.capture.children", self.job.source.kind, str(tell)],
                stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, pass_fds=(tell,),
                env=self._environment(), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise CaptureError(
                f"{printable(python)}: cannot be run ({(error.strerror or str(error)).lower()}); "
                "give --python an interpreter that has the framework installed"
            ) from error
        _send(process.stdin, self.job.encode())
        return process

    def _environment(self) -> dict[str, str]:
        paths = (str(self._shelf), os.environ.get("PYTHONPATH", ""))
        path = os.pathsep.join(filter(None, paths))
        # What lies in the current folder must not be imported instead of a framework.
        return os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}

    def _events(self) -> Iterator[Event]:
        with suppress(ValueError, OSError):  # closed under our hands by cancel, from another thread
            for line in self._told:
                yield decode(line)

    def _end(self, grace_s: float = _GRACE_S) -> None:
        """Leave no process behind; give the child a moment to leave by itself where it was not cancelled."""
        process = self._process
        if self.is_cancelled:
            _signal(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
        _signal(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        shutil.rmtree(self._shelf, ignore_errors=True)

    def _close(self) -> None:
        """Let go of all files; the log is kept."""
        self._kept_log = self.log()[-_LOG_KEPT:]
        self._log.close()
        self._told.close()

    def _forget(self) -> None:
        self._log.close()
        shutil.rmtree(self._shelf, ignore_errors=True)

    def _died(self) -> Failed:
        """How a child ended that said nothing of it."""
        source, status = printable(self.job.source), self._process.returncode
        path = dump_at(self.job.output)
        left = f"; what was captured so far lies in {printable(path)}" if path else ""
        if self.is_cancelled:
            return Failed(f"{source}: cancelled while {self._phase}{left}", self._tail(), path)
        if status < 0:
            name = _signal_name(-status)
            how = f"was ended by {name} while {self._phase}{_HINTS.get(name, '')}"
        else:
            how = f"ended with status {status} while {self._phase}, and did not say why; see its log with --debug"
        return Failed(f"{source}: the process {how}{left}", self._tail(), path)

    def _tail(self) -> str:
        return self.log()[-_TAIL:]


def dump_at(folder: str) -> str | None:
    """The folder, if a dump lies in it, finished or not."""
    return folder if any((Path(folder) / name).exists() for name in (MANIFEST, JOURNAL)) else None


def _send(pipe: IO[bytes] | None, line: str) -> None:
    """Give the job. A child that is gone already will be found so when it is listened to."""
    if pipe is not None:
        with suppress(BrokenPipeError):
            pipe.write(f"{line}\n".encode())
            pipe.flush()


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
