"""A run of a source, as the parent process sees it: a job in, events out.

``child`` holds the process itself. Normally a run starts a child and ends it. Given a ``ReusableChild``, it takes the
child that an earlier run gave back, and gives it back again if the run succeeds. If a child's model is no longer what a
new process would load, the child says so before it writes anything, and the run starts a new child. Every run is
signed, because this user asked for it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Self

from tensordiff.capture.child import Child, ReusableChild
from tensordiff.capture.engines import ENGINES
from tensordiff.capture.events import Done, Event, Failed, NewProcessNeeded, Note, Phase
from tensordiff.capture.job import Job
from tensordiff.capture.provenance import sign
from tensordiff.dump.native.manifest import JOURNAL, MANIFEST
from tensordiff.errors import CaptureError, printable
from tensordiff.util.remote import is_url
from tensordiff.util.shell_line import shell_line

_GRACE_S = 3.0  # how long a child may take to end by itself
_CANCEL_S = 0.5  # and after it was cancelled
_TAIL = 6000  # characters of the log that are shown with a failure
_LOG_KEPT = 1 << 20
_HINTS = {
    "SIGKILL": "; the system may have run out of memory",
    "SIGSEGV": "; it crashed inside the framework",
    "SIGILL": "; the processor refused an instruction: for bfloat16 on a virtual machine try the environment "
    "variable ONEDNN_MAX_CPU_ISA=AVX512_CORE",
}


def _refuse_remote_injection(job: Job) -> None:
    injection = job.settings.inject
    if injection is not None and is_url(injection.dump):
        line = shell_line(["tensordiff", "convert"], [injection.dump])
        raise CaptureError(
            f"--inject {printable(injection.dump)}: the model's own process reads local files only; copy it with "
            f"{line} -o DIR, and inject DIR"
        )


class Run:
    """A running source. Iterate over its events; the last is ``Done`` or ``Failed``."""

    def __init__(self, job: Job, reusable_child: ReusableChild | None = None) -> None:
        _refuse_remote_injection(job)
        self.job = replace(job, signature=sign(job))
        self.is_cancelled = False
        self._reusable_child = reusable_child
        self._is_iterated = self._is_over = self._is_given_back = False
        self._kept_log, self._phase = "", "starting"
        self._lock = Lock()  # a run may be cancelled from another thread than the one that iterates
        self._child = self._start_child()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_iterated = False
        self.cancel()

    def __iter__(self) -> Iterator[Event]:
        self._is_iterated = True
        try:
            yield from self._events_until_end()
        finally:
            self._is_iterated = False
            self.cancel()

    def _events_until_end(self) -> Iterator[Event]:
        if ENGINES[self.job.source.kind].has_environment and self.job.settings.python is None:
            yield Note(f"{printable(self.job.source)}: runs in {printable(self._child.python)}")
        is_silent = True
        for event in self._child.events():
            is_silent = False
            if isinstance(event, NewProcessNeeded):
                yield from self._restart(event.why)
                return
            if isinstance(event, Phase):
                self._phase = event.name
            if isinstance(event, Done | Failed):
                self._end(event)
                yield event
                return
            yield event
        self._end(None)
        if is_silent and self._child.jobs_sent > 1 and not self.is_cancelled:
            yield from self._restart("the process that waited had ended")
        else:
            self._is_over = True
            yield self._crash()

    def _restart(self, why: str) -> Iterator[Event]:
        """Continue with a new child, because the previous run's child cannot be used; unless the run was cancelled."""
        yield Note(f"{why}; a new process is started")
        with self._lock:
            self._child.end(_GRACE_S)
            if not self.is_cancelled:
                self._child.close()
                self._child = self._start_child()
        yield from self._events_until_end()

    def result(self) -> Done:
        """Run to the end and ignore the other events; raises ``CaptureError`` if it failed."""
        for event in self:
            if isinstance(event, Done):
                return event
            if isinstance(event, Failed):
                raise event.error()
        raise CaptureError(f"{printable(self.job.source)}: was iterated already")

    def cancel(self) -> None:
        """End the child and everything it started; from any thread. Does nothing if the run is over."""
        with self._lock:
            if self._is_given_back:
                return
            if not self._is_over:
                self.is_cancelled = True
            self._child.end(_CANCEL_S, terminate=self.is_cancelled)
            if not self._is_iterated:  # the iterating thread is reading the pipe, and closes it itself
                self._keep_log()
                self._child.close()

    def log(self) -> str:
        """What the child printed in this run so far."""
        return self._kept_log if self._is_given_back or self._child.is_closed else self._child.log(self._log_start)

    @property
    def pid(self) -> int:
        """The child's process id, which is also the id of its process group."""
        return self._child.pid

    def _start_child(self) -> Child:
        child = Child(self.job) if self._reusable_child is None else self._reusable_child.take(self.job)
        self._log_start = child.log_bytes
        child.send(self.job)
        return child

    def _end(self, event: Done | Failed | None) -> None:
        """Give the child back for the next run if it can be used again; otherwise end it."""
        with self._lock:
            if isinstance(event, Done) and not self.is_cancelled and self._reusable_child is not None:
                self._keep_log()
                self._is_given_back = self._reusable_child.give_back(self._child)
            self._is_over = event is not None
            if not self._is_given_back:
                self._child.end(self._grace_s(event), terminate=self.is_cancelled)

    def _grace_s(self, event: Done | Failed | None) -> float:
        """How long the child may take to end. A reusable one does not end by itself, and has nothing to finish."""
        if self.is_cancelled:
            return _CANCEL_S
        return 0.0 if self._child.is_reusable and event is not None else _GRACE_S

    def _keep_log(self) -> None:
        if not self._child.is_closed:
            self._kept_log = self.log()[-_LOG_KEPT:]

    def _crash(self) -> Failed:
        """The event for a child that ended without a last event."""
        source, status = printable(self.job.source), self._child.status
        path = dump_at(self.job.output)
        left = f"; what was captured so far is in {printable(path)}" if path else ""
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
    """The folder, if there is a dump in it, finished or not."""
    return folder if any((Path(folder) / name).exists() for name in (MANIFEST, JOURNAL)) else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
