"""Processes that try cases, each ended when a case takes too long; a crash or a hang is a finding like any other."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from torture.part import Part, Skipped

_START_S = 180.0  # how long a worker may take to be ready: it imports torch to make its samples


class CannotStart(Exception):
    """A part that could not be tried at all, through no fault of the machine."""


class Worker:
    """One process, which is sent the numbers of cases and answers each with a line."""

    def __init__(self, part: Part, folder: Path, seed: int) -> None:
        folder.mkdir(parents=True)
        self._errors = (folder / "stderr").open("w+b")
        words = [sys.executable, "-m", "torture.worker", part.name, str(folder), str(seed)]
        self.process = subprocess.Popen(  # noqa: S603 - ourselves
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True,
            env=os.environ | {"TMPDIR": str(folder), "XDG_STATE_HOME": str(folder / "state")},
        )  # fmt: skip
        self.case: int | None = None
        """The case that it is at."""
        self.is_ready = False
        self.due = time.monotonic() + _START_S
        self._rest = b""

    def begin(self, case: int, patience_s: float) -> None:
        """Have it try a case."""
        self.case, self.due = case, time.monotonic() + patience_s
        with suppress(BrokenPipeError):
            assert self.process.stdin is not None  # noqa: S101 - it was asked for
            self.process.stdin.write(f"{case}\n".encode())
            self.process.stdin.flush()

    def answers(self) -> list[str] | None:
        """The lines that have come; None where it is gone."""
        assert self.process.stdout is not None  # noqa: S101 - it was asked for
        more = os.read(self.process.stdout.fileno(), 1 << 16)
        if not more:
            return None
        *lines, self._rest = (self._rest + more).split(b"\n")
        return [line.decode() for line in lines]

    def end(self) -> None:
        """End it, and whatever it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._errors):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def last_words(self) -> str:
        """The end of what it wrote as errors."""
        self._errors.seek(0)
        return self._errors.read()[-600:].decode("utf-8", "replace").strip().replace("\n", " | ")


class Workers:
    """Some of them, all busy."""

    def __init__(self, part: Part, folder: Path, seed: int, jobs: int) -> None:
        self._part, self._folder, self._seed, self._jobs = part, folder, seed, jobs
        self._started = 0
        self._workers: list[Worker] = []

    def __enter__(self) -> Self:
        for _ in range(self._jobs):
            self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.end()

    def _start(self) -> None:
        self._started += 1
        self._workers.append(Worker(self._part, self._folder / f"worker-{self._started}", self._seed))

    def results(self, cases: Iterator[int]) -> Iterator[tuple[int, list[str]]]:
        """Try cases; the number of each and what is wrong, in the order they are done."""
        while any(worker.case is not None or not worker.is_ready for worker in self._workers) or self._feed(cases):
            waiting = {worker.process.stdout: worker for worker in self._workers if worker.process.stdout}
            readable, _, _ = select.select(list(waiting), [], [], 0.5)
            for stream in readable:
                yield from self._take(waiting[stream])
            for worker in [worker for worker in self._workers if time.monotonic() > worker.due]:
                if worker.case is not None or not worker.is_ready:
                    yield from self._replace(worker, f"took longer than {self._part.patience_s:.0f} s")
            self._feed(cases)

    def _feed(self, cases: Iterator[int]) -> bool:
        """Give idle workers something to do; whether there was anything."""
        fed = False
        for worker in self._workers:
            if worker.is_ready and worker.case is None and (case := next(cases, None)) is not None:
                worker.begin(case, self._part.patience_s)
                fed = True
        return fed

    def _take(self, worker: Worker) -> Iterator[tuple[int, list[str]]]:
        lines = worker.answers()
        if lines is None:
            status = worker.process.wait()
            yield from self._replace(worker, f"ended the process with status {status}: {worker.last_words()}")
            return
        for line in lines:
            answer = json.loads(line)
            if "ready" in answer:
                worker.is_ready = True
            elif "skipped" in answer:
                raise Skipped(answer["skipped"])
            elif worker.case is not None:
                case, worker.case = worker.case, None
                yield case, answer["found"]

    def _replace(self, worker: Worker, why: str) -> Iterator[tuple[int, list[str]]]:
        """Go on with another."""
        if not worker.is_ready:
            raise CannotStart(f"a worker could not start: it {why}")
        worker.end()
        self._workers.remove(worker)
        self._start()
        if worker.case is not None:
            yield worker.case, [why]
