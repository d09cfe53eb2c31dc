"""A process that stays: what it keeps from one job to the next, and when it must not be used again.

A capture in a process that made others has to give the very bytes that one in a new process gives. What can be put back
is put back before each job: the folder, the environment, where modules are looked for, Python's and numpy's random
numbers. What cannot is looked at, and where it is not as it was the job is handed back, for a new process: files that
were written since this process began, and what ``same`` sees of a model. Nothing here imports a framework.
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

from tensordiff.capture.events import Done, Event, NewProcessNeeded
from tensordiff.capture.job import Job
from tensordiff.errors import printable

Tell = Callable[[Event], None]
Answer = Callable[[Job, Tell], Done]


class Changed(Exception):
    """What is not as it was, as a sentence."""


class Staying:
    """Answers jobs about one source, one after the other."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._answer: Answer | None = None
        self._since_ns = time.time_ns()

    def __call__(self, job: Job, tell: Tell) -> Done | NewProcessNeeded:
        """Answer a job, or hand it back."""
        if self._answer is None:
            self._answer = self._load(job, tell)
            self._surroundings = Surroundings.here()
            gc.freeze()  # it is kept until the end, and need not be looked through after every job
            return self._answer(job, tell)
        gc.collect()  # a model that the last job left in a cycle is too large to wait
        self._surroundings.restore()
        try:
            self._refuse_old(job)
            return self._answer(job, tell)
        except Changed as changed:
            return NewProcessNeeded(str(changed))

    def _load(self, job: Job, tell: Tell) -> Answer:
        """What answers: where a kind of source has nothing to keep but what it imported, its one way to run."""
        module = import_module(f"tensordiff.capture.engines.{self.kind}.engine")
        answer: Answer = module.keep(job, tell) if hasattr(module, "keep") else module.run
        return answer

    def _refuse_old(self, job: Job) -> None:
        """Refuse what was loaded from files that are others by now. When a file was changed cannot be set back."""
        for path in _files(job.source.target):
            try:
                changed_ns = os.stat(path).st_ctime_ns  # noqa: PTH116 - thousands of them
            except OSError:
                continue  # modules may name files that never were
            if changed_ns > self._since_ns:
                raise Changed(f"{printable(path)}: was written since it was loaded")


def _files(target: str) -> Iterator[str]:
    """Every file that a module was loaded from, and those of the source."""
    for module in list(sys.modules.values()):
        if isinstance(file := getattr(module, "__dict__", {}).get("__file__"), str):
            yield file
    path = Path(target).expanduser()
    yield from map(str, path.iterdir() if path.is_dir() else [path])


class Surroundings(NamedTuple):
    """What a capture may have changed around it, and a new process would not have."""

    folder: str
    environment: dict[str, str]
    path: list[str]
    chance: Any
    numpy_s_chance: Any

    @classmethod
    def here(cls) -> Self:
        """As they are now."""
        return cls(str(Path.cwd()), dict(os.environ), list(sys.path), random.getstate(), np.random.get_state())

    def restore(self) -> None:
        """Put them back."""
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        sys.path[:] = self.path
        random.setstate(self.chance)
        np.random.set_state(self.numpy_s_chance)
