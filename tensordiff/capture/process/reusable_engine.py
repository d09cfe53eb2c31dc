"""An engine in a process that answers several jobs: what it keeps between them, and when it must not be used again.

A capture in a process that already made others must write the same bytes as one in a new process. What can be restored
is restored before each job: the working folder, the environment, the import path, the random numbers of Python and
numpy. The rest is checked, and if it changed, the job is handed back for a new process: files that were written since
this process began, and the model itself, which the engine checks. Nothing here imports a framework.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from tensordiff.capture.engines import module_of
from tensordiff.capture.events import Done, NewProcessNeeded, Tell
from tensordiff.capture.job import Job
from tensordiff.capture.process.loaded_files import module_files
from tensordiff.errors import printable

RunJob = Callable[[Job, Tell], Done]


class StateChanged(Exception):
    """Something changed since the process was new; the message says what."""


class ReusableEngine:
    """Answers jobs for one source, one after the other."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._run: RunJob | None = None
        self._since_ns = time.time_ns()

    def __call__(self, job: Job, tell: Tell) -> Done | NewProcessNeeded:
        """Run a job, or hand it back."""
        if self._run is None:
            self._run = self._load(job, tell)
            self._surroundings = Surroundings.current()
            gc.freeze()  # what is loaded stays until the end, and need not be scanned after every job
            return self._run(job, tell)
        gc.collect()  # a model that the last job left in a reference cycle is too large to wait
        self._surroundings.restore()
        try:
            self._refuse_changed_files(job)
            return self._run(job, tell)
        except StateChanged as changed:
            return NewProcessNeeded(str(changed))

    def _load(self, job: Job, tell: Tell) -> RunJob:
        """Load the model with ``load_reusable``; an engine without it keeps only its imports between jobs."""
        module = import_module(module_of(self.kind))
        run: RunJob = module.load_reusable(job, tell) if hasattr(module, "load_reusable") else module.run
        return run

    def _refuse_changed_files(self, job: Job) -> None:
        """Raise if a file changed after it was loaded. The time of a change, ctime, cannot be set back."""
        for path in _loaded_files(job.source.target):
            try:
                changed_ns = os.stat(path).st_ctime_ns  # noqa: PTH116 - thousands of them
            except OSError:
                continue  # modules may name files that never existed
            if changed_ns > self._since_ns:
                raise StateChanged(f"{printable(path)}: was written since it was loaded")


def _loaded_files(target: str) -> Iterator[str]:
    """Every file that a module was loaded from, and the files of the source."""
    yield from module_files()
    path = Path(target).expanduser()
    yield from map(str, path.iterdir() if path.is_dir() else [path])


class Surroundings(NamedTuple):
    """The state of the process that a capture may change, and that a new process would have fresh."""

    folder: str
    environment: dict[str, str]
    path: list[str]
    python_random: Any
    numpy_random: Any

    @classmethod
    def current(cls) -> Self:
        """The current state."""
        return cls(
            folder=str(Path.cwd()),
            environment=dict(os.environ),
            path=list(sys.path),
            python_random=random.getstate(),
            numpy_random=np.random.get_state(),
        )

    def restore(self) -> None:
        """Restore it."""
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        sys.path[:] = self.path
        random.setstate(self.python_random)
        np.random.set_state(self.numpy_random)
