"""The process that tries cases of one part: numbers come on stdin, answers go to stdout, a line of JSON each."""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import traceback
from pathlib import Path

from torture.part import PARTS, Skipped, numbers_of

_MOST_GROWTH_MB = 700
_ADDRESS_SPACE = 24 << 30  # so that the machine survives what a case asks for


def main(name: str, folder: str, seed: str) -> None:
    """Answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anyone prints is not an answer
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    (part,) = (part for part in PARTS if part.name == name)

    def tell(**answer: object) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        with part.opened(Path(folder)) as check:
            tell(ready=True)
            for line in sys.stdin:
                before = _peak_mb()
                tell(found=_tried(check, int(line), seed, part.name, before))
    except Skipped as why:
        tell(skipped=str(why))


def _tried(check: object, case: int, seed: str, name: str, before_mb: float) -> list[str]:
    try:
        found: list[str] = check(numbers_of(int(seed), name, case))  # type: ignore[operator]
    except Exception as error:  # whatever it is, it is the finding
        where = traceback.extract_tb(error.__traceback__)[-1]
        found = [f"{type(error).__name__}: {error!s:.300} ({where.filename}:{where.lineno})"]
    grown = _peak_mb() - before_mb
    if grown > _MOST_GROWTH_MB:
        found.append(f"took {grown:.0f} MB of memory")
    if case % 200 == 0:
        gc.collect()
    return found


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
