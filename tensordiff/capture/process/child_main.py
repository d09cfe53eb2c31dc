"""A child's beginning and end: its jobs, its voice, its parent's death, and every failure as a sentence.

A child answers one job, or, where it is to stay, one after the other until the parent is gone, something fails, or
nobody wants anything for so long that its memory is better given back.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable
from importlib import import_module

from tensordiff.capture.events import Done, Event, Failed, NewProcessNeeded, encode
from tensordiff.capture.job import Job
from tensordiff.capture.runner import dump_at
from tensordiff.errors import TensordiffError, printable

_STDIN = 0
IDLE_S = 900.0
"""How long a child waits for another job."""


class Tell:
    """The child's voice: call it with an event, from any thread."""

    def __init__(self, told: int) -> None:
        os.set_inheritable(told, False)
        self._file = os.fdopen(told, "wb", buffering=0)
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Tell the parent."""
        with self._lock:
            self._file.write(f"{encode(event)}\n".encode())


def start(kind: str, told: int, *, stays: bool = False, idle_s: float = IDLE_S) -> int:
    """Answer a job of this kind, or several; the exit status."""
    tell, lines = Tell(told), Lines()
    os.environ.pop("PYTHONSAFEPATH", None)
    answer: Callable[[Job, Tell], Done | NewProcessNeeded] = _staying(kind) if stays else _once(kind)
    while (line := lines.next(idle_s)) is not None:
        job = Job.decode(line)
        try:
            said = answer(job, tell)
        except BaseException as error:  # whatever it is, the parent must hear of it
            tell(failure(job, error))
            return 1
        tell(said)
        if not stays or isinstance(said, NewProcessNeeded):
            return 0
    return 0


def _once(kind: str) -> Callable[[Job, Tell], Done]:
    def answer(job: Job, tell: Tell) -> Done:
        done = import_module(f"tensordiff.capture.engines.{kind}.engine").run(job, tell)
        if not isinstance(done, Done):
            raise TypeError(f"{kind} gave no result")
        return done

    return answer


def _staying(kind: str) -> Callable[[Job, Tell], Done | NewProcessNeeded]:
    from tensordiff.capture.process.persistent import Staying

    return Staying(kind)


class Lines:
    """What the parent sends, line by line. It holds the other end: when it lets go, it is gone, and so are we."""

    def __init__(self) -> None:
        self._read: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read_all, daemon=True).start()

    def next(self, idle_s: float) -> bytes | None:
        """The next line; None where none came for so long."""
        try:
            return self._read.get(timeout=idle_s)
        except queue.Empty:
            return None

    def _read_all(self) -> None:
        """Past Python's buffers: this waits until the end, and must hold no lock meanwhile."""
        rest = b""
        while more := os.read(_STDIN, 1 << 16):
            *lines, rest = (rest + more).split(b"\n")
            for line in lines:
                self._read.put(line)
        os.killpg(os.getpgrp(), signal.SIGKILL)


def failure(job: Job, error: BaseException) -> Failed:
    """What went wrong, as the parent hears it."""
    detail = "".join(traceback.format_exception(error))
    path = dump_at(job.output)
    if isinstance(error, TensordiffError):
        return Failed(str(error), detail, path)
    said = printable(str(error).strip().splitlines()[0] if str(error).strip() else "it did not say why")
    left = f"; the layers it reached lie in {printable(path)}" if path else ""
    return Failed(f"{printable(job.source)}: {type(error).__name__}: {said:.400}{left}", detail, path)
