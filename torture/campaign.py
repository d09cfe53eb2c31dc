"""Running parts until their time is over, and telling what they found.

A part gets its share of the time. What one part leaves, because it was skipped or had nothing to do, goes to the next.
No part runs longer than its share by more than one case, and no case longer than its patience.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from torture.part import Part, Skipped, numbers_of
from torture.workers import CannotStart, Workers

_MOST_FINDINGS = 20  # of one part; it stops then, for more of the same helps nobody


@dataclass
class Tally:
    """What a part came to."""

    part: Part
    cases: int = 0
    findings: int = 0
    seconds: float = 0.0
    skipped: str = ""

    def __str__(self) -> str:
        if self.skipped and not self.cases:
            return f"{self.part.name:10} skipped: {self.skipped}"
        left_out = f"; partly skipped: {self.skipped}" if self.skipped else ""
        return (
            f"{self.part.name:10} {self.cases:>8,} cases {self.seconds:>6.0f} s {self.findings:>4} findings{left_out}"
        )


@dataclass(frozen=True)
class Campaign:
    """What to attack, for how long, and by which numbers."""

    parts: Sequence[Part]
    seconds: float
    seed: int
    folder: Path
    jobs: int
    case: int | None = None
    """One case alone."""

    def run(self) -> list[Tally]:
        """Run every part; findings are told as they come."""
        end = time.monotonic() + self.seconds
        tallies = []
        for k, part in enumerate(self.parts):
            share = part.share / sum(later.share for later in self.parts[k:])
            now = time.monotonic()
            tallies.append(self._run_part(part, now + share * max(end - now, 0.0)))
            say(str(tallies[-1]))
        return tallies

    def _run_part(self, part: Part, end: float) -> Tally:
        tally, began = Tally(part), time.monotonic()
        folder = self.folder / part.name
        folder.mkdir()
        results = self._isolated(part, folder, end) if part.is_isolated else self._here(part, folder, end)
        try:
            for case, found in results:
                tally.cases += 1
                tally.findings += bool(found)
                for sentence in found:
                    say(f"FINDING in {part.name}, seed {self.seed}, case {case}: {sentence}")
                    say(f"        again: python -m torture --only {part.name} --seed {self.seed} --case {case}")
                if tally.findings >= _MOST_FINDINGS:
                    break
        except Skipped as why:
            tally.skipped = str(why)
        except CannotStart as why:
            tally.findings += 1
            say(f"FINDING in {part.name}: {why}")
        tally.seconds = time.monotonic() - began
        return tally

    def _cases(self, end: float) -> Iterator[int]:
        """The numbers of the cases, until the time is over; at least one."""
        if self.case is not None:
            yield self.case
            return
        for case in count():
            if case and time.monotonic() >= end:
                return
            yield case

    def _isolated(self, part: Part, folder: Path, end: float) -> Iterator[tuple[int, list[str]]]:
        with Workers(part, folder, self.seed, 1 if self.case is not None else self.jobs) as workers:
            yield from workers.results(self._cases(end))

    def _here(self, part: Part, folder: Path, end: float) -> Iterator[tuple[int, list[str]]]:
        with part.opened(folder) as check:
            for case in self._cases(end):
                yield case, check(numbers_of(self.seed, part.name, case))


def say(text: str) -> None:
    """Tell whoever watches, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
