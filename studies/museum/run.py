"""Running the museum: exhibits and clean ports of some seeds, two at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import NamedTuple

from studies.captures import plain_torch
from studies.museum.architectures import ARCHITECTURES
from studies.museum.catalogue import BY_NAME, EXHIBITS
from studies.museum.controls import Control, try_architecture
from studies.museum.tables import misses, museum
from studies.museum.trial import Result, try_exhibit

_WORKERS = 2
_BY_ARCHITECTURE = {architecture.name: architecture for architecture in ARCHITECTURES}


class Task(NamedTuple):
    """An exhibit or the clean ports of an architecture, with one seed."""

    kind: str
    name: str
    seed: int


def tasks(seeds: Sequence[int], entry: str | None = None) -> list[Task]:
    """All that there is to do; ``entry`` is one exhibit's name, or one architecture's."""
    named = [("exhibit", exhibit.name) for exhibit in EXHIBITS]
    named += [("architecture", name) for name in _BY_ARCHITECTURE]
    some = [one for one in named if entry is None or one[1] == entry]
    if not some:
        raise SystemExit(f"{entry}: no exhibit or architecture of the museum has that name")
    return [Task(*one, seed) for one in some for seed in seeds]


def perform(task: Task) -> list[Result] | list[Control]:
    """Do one task, in whichever process."""
    with plain_torch():
        if task.kind == "exhibit":
            return list(try_exhibit(BY_NAME[task.name], task.seed))
        return list(try_architecture(_BY_ARCHITECTURE[task.name], task.seed))


def run(todo: Sequence[Task]) -> tuple[list[Result], list[Control]]:
    """Do all tasks, two at a time; the results stand in the order of the tasks."""
    if len(todo) == 1:
        found = {todo[0]: perform(todo[0])}
    else:
        # Other processes are started anew: one that was forked off a process with threads may wait for ever.
        with ProcessPoolExecutor(_WORKERS, mp_context=get_context("spawn")) as pool:
            found = dict(_finished({pool.submit(perform, task): task for task in todo}))
    ordered = [one for task in todo for one in found[task]]
    return [one for one in ordered if isinstance(one, Result)], [one for one in ordered if isinstance(one, Control)]


def _finished(
    futures: dict[Future[list[Result] | list[Control]], Task],
) -> Iterator[tuple[Task, list[Result] | list[Control]]]:
    for count, future in enumerate(as_completed(futures), 1):
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{count} of {len(futures)}")
        yield futures[future], future.result()


def text(seeds: Sequence[int], entry: str | None, *, is_report: bool, shows_misses: bool) -> str:
    """The tables of a run."""
    results, controls = run(tasks(seeds, entry))
    if shows_misses:
        sys.stderr.writelines(f"{one}\n" for one in misses(results, controls))
    return museum(results, controls, seeds, is_report)
