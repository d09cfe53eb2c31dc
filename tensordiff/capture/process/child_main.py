"""The child process: reads jobs, has an engine run them, sends events, and turns every failure into a sentence.

A child answers one job. A reusable child answers further jobs until the parent is gone, a job fails, or no job comes
for so long that its memory should be freed.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from tensordiff.capture.engines import module_of
from tensordiff.capture.events import Done, Event, Failed, NewProcessNeeded, Tell, encode
from tensordiff.capture.job import Job, refuse_settings
from tensordiff.capture.process.loaded_files import loaded_files
from tensordiff.capture.runner import dump_at
from tensordiff.errors import TensordiffError, printable
from tensordiff.util.mappings import count_losses, raise_unclaimed

_STDIN = 0
IDLE_S = 900.0
"""How long a reusable child waits for another job."""


def child_main(kind: str, events: int, *, is_reusable: bool = False, idle_s: float = IDLE_S) -> int:
    """Answer one job of this kind, or several; returns the exit status."""
    tell, lines = EventPipe(events), JobLines()
    os.environ.pop("PYTHONSAFEPATH", None)
    answer: Callable[[Job, Tell], Done | NewProcessNeeded] = _reusable_engine(kind) if is_reusable else run_job
    while (line := lines.next(idle_s)) is not None:
        job = Job.decode(line)
        try:
            refuse_settings(job.source, job.settings)
            before = count_losses()
            last = answer(job, tell)
            raise_unclaimed(before)
        except BaseException as error:  # the parent must hear of any failure
            tell(failure(job, error))
            return 1
        if isinstance(last, Done) and job.lists_files:
            last = replace(last, files=loaded_files(job.output))
        tell(last)
        if not is_reusable or isinstance(last, NewProcessNeeded):
            return 0
    return 0


def run_job(job: Job, tell: Tell) -> Done:
    """Have the engine of a job's source run it."""
    refuse_settings(job.source, job.settings)
    done = import_module(module_of(job.source.kind)).run(job, tell)
    if not isinstance(done, Done):
        raise TypeError(f"{module_of(job.source.kind)}.run returned no Done event")
    return done


def _reusable_engine(kind: str) -> Callable[[Job, Tell], Done | NewProcessNeeded]:
    from tensordiff.capture.process.reusable_engine import ReusableEngine

    return ReusableEngine(kind)


class EventPipe:
    """Sends events to the parent; may be called from any thread."""

    def __init__(self, events: int) -> None:
        os.set_inheritable(events, False)
        self._file = os.fdopen(events, "wb", buffering=0)
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Send one event."""
        with self._lock:
            self._file.write(f"{encode(event)}\n".encode())


class JobLines:
    """The lines that the parent sends. When the parent closes its end of the pipe, this process ends."""

    def __init__(self) -> None:
        self._read: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read_all, daemon=True).start()

    def next(self, idle_s: float) -> bytes | None:
        """The next line; None if none came for so long."""
        try:
            return self._read.get(timeout=idle_s)
        except queue.Empty:
            return None

    def _read_all(self) -> None:
        """Read lines from the file descriptor itself: Python's buffered reader would hold a lock while it waits."""
        rest = b""
        while more := os.read(_STDIN, 1 << 16):
            *lines, rest = (rest + more).split(b"\n")
            for line in lines:
                self._read.put(line)
        os.killpg(os.getpgrp(), signal.SIGKILL)


def failure(job: Job, error: BaseException) -> Failed:
    """The ``Failed`` event for an exception."""
    detail = "".join(traceback.format_exception(error))
    path = dump_at(job.output)
    if isinstance(error, TensordiffError):
        return Failed(str(error), detail, path)
    said = printable(str(error).strip().splitlines()[0] if str(error).strip() else "it did not say why")
    left = f"; the layers it reached lie in {printable(path)}" if path else ""
    return Failed(f"{printable(job.source)}: {type(error).__name__}: {said:.400}{left}", detail, path)
