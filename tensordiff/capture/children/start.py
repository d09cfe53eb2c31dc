"""A child's beginning and end: its job, its voice, its parent's death, and every failure as a sentence."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from importlib import import_module

from tensordiff.capture.events import Done, Event, Failed, encode
from tensordiff.capture.job import Job
from tensordiff.capture.runner import dump_at
from tensordiff.errors import TensordiffError, printable

_STDIN = 0


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


def start(kind: str, told: int) -> int:
    """Run a job of this kind; the exit status."""
    tell = Tell(told)
    os.environ.pop("PYTHONSAFEPATH", None)
    job = Job.decode(_first_line())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        tell(_run(kind, job, tell))
    except BaseException as error:  # whatever it is, the parent must hear of it
        tell(failure(job, error))
        return 1
    return 0


def _run(kind: str, job: Job, tell: Tell) -> Done:
    done = import_module(f"tensordiff.capture.children.{kind}").run(job, tell)
    if not isinstance(done, Done):
        raise TypeError(f"{kind} gave no result")
    return done


def _first_line() -> bytes:
    """The job. Read past Python's buffers: a thread waits on this pipe until the end, and must hold no lock."""
    line = b""
    while not line.endswith(b"\n") and (more := os.read(_STDIN, 1 << 16)):
        line += more
    return line


def _end_with_parent() -> None:
    """The parent holds the other end and writes nothing more: what ends this reading is its death."""
    while os.read(_STDIN, 1 << 16):
        pass
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
