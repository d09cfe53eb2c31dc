"""What a part of the campaign is: a module that opens a check, and how it is run."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

Check = Callable[[random.Random], list[str]]
"""Makes and tries one case by random numbers of its own; gives a sentence for each thing that is wrong."""


class Skipped(Exception):
    """A part, or a case, that cannot be tried here; the message says why."""


class Part(NamedTuple):
    """One way to attack."""

    name: str
    about: str
    share: float
    """Of the campaign's time."""
    is_isolated: bool
    """Whether its cases run in processes of their own, which may hang, crash or eat memory."""
    patience_s: float = 60.0
    """How long a case may take, on a machine that is busy with something else, too."""

    def opened(self, folder: Path) -> AbstractContextManager[Check]:
        """The check, with what it needs in a folder of its own."""
        made: AbstractContextManager[Check] = import_module(f"torture.{self.name}").opened(folder)
        return made


def numbers_of(seed: int, part: str, case: int) -> random.Random:
    """The random numbers that a case is made of."""
    return random.Random(f"{seed} {part} {case}")  # noqa: S311 - nothing is kept secret with them


PARTS = (
    Part("mutants", "damaged files, for every reader", 0.30, is_isolated=True),
    Part("pairs", "numbers against long doubles, in all types", 0.20, is_isolated=True),
    Part("signals", "signals at random moments of every command", 0.20, is_isolated=False),
    Part("disks", "full disks and folders that cannot be written, for every command", 0.14, is_isolated=False),
    Part("visitors", "thirty visitors of serve, some of whom misbehave", 0.08, is_isolated=False),
    Part("cycles", "comparisons opened, used and closed in the app; memory and files counted", 0.08, is_isolated=True,
         patience_s=240.0),
)  # fmt: skip
