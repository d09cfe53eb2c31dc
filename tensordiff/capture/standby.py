"""The child of the last run, kept for the next one of the same source: what takes time is to import and to load.

Whoever makes several runs one after the other holds a ``Standby``, gives it to each ``Run``, and closes it at the end.
There is never more than one child in it, so never more than one model waits. A run takes the child out and leaves it
here when all went well; one that failed, was cancelled or died is not used again. Whether what a child holds is still
what a new one would load is for the child to say: see ``children.staying``.
"""

from __future__ import annotations

from dataclasses import replace
from threading import Lock
from types import TracebackType
from typing import Self

from tensordiff.capture.again import ASKED
from tensordiff.capture.child import Child
from tensordiff.capture.job import Job
from tensordiff.capture.settings import Settings

STAYS = ("hf", "py", "onnx")
"""The kinds whose children can answer more than one job."""
FREE = (*ASKED, "layers", "leaves", "no_inputs", "max_bytes", "ops", "inject", "force")
"""The settings that each job has for itself; by all others a source is loaded."""


class Standby:
    """At most one child that waits for another job."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: Child | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def take(self, job: Job) -> Child:
        """The child that waits, if it is one for this job; else a new one, and that one is ended."""
        with self._lock:
            child, self._waiting = self._waiting, None
        if child is not None:
            if child.is_alive and _loaded(child.job) == _loaded(job):
                return child
            _dismiss(child)
        return Child(job, stays=job.source.kind in STAYS)

    def leave(self, child: Child) -> bool:
        """Keep a child whose job is done; whether it is kept, and not for the caller to end."""
        with self._lock:
            if self._is_closed or self._waiting is not None or not child.stays:
                return False
            self._waiting = child
            return True

    def close(self) -> None:
        """End the child that waits; from now on none is kept."""
        with self._lock:
            child, self._waiting, self._is_closed = self._waiting, None, True
        if child is not None:
            _dismiss(child)


def _dismiss(child: Child) -> None:
    child.end(grace_s=0)
    child.close()


def _loaded(job: Job) -> Job:
    """What decides on what is loaded, as a job."""
    usual = Settings()
    settings = replace(job.settings, **{name: getattr(usual, name) for name in FREE})
    return Job(job.source, settings, "")
