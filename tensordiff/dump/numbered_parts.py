"""Files that say which part of how many they are (``model-00001-of-00003.safetensors``), and parts that are missing.

Checkpoints of Hugging Face, MLX and llama.cpp are split so. A download that stopped, or one part given by itself, would
otherwise pass for the whole.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator

from tensordiff.dump.model import Problem

_PART = re.compile(r"(?P<head>.*?)(?P<number>\d{1,6})-of-(?P<count>\d{1,6})(?P<tail>\.[^/]*)")


def of_one_part(file: str) -> Iterator[Problem]:
    """A problem where a file that was given by itself is one part of several."""
    if (match := _PART.fullmatch(file)) is not None and int(match["count"]) > 1:
        why = f"is one of {int(match['count'])} parts, and the others were not read; give their folder"
        yield Problem(file, why, is_unread=True)


def missing_parts(files: Collection[str]) -> Iterator[Problem]:
    """A problem for each set of parts, among the files that were read, of which some were not."""
    sets: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    widths: dict[tuple[str, str, str], int] = {}
    for name in files:
        if "-of-" in name and (match := _PART.fullmatch(name)) is not None:
            key = match["head"], match["count"], match["tail"]
            sets[key].add(int(match["number"]))
            widths[key] = len(match["number"])
    for key, numbers in sets.items():
        head, count, tail = key
        first = 0 if 0 in numbers else 1
        gone = int(count) - sum(first <= number < first + int(count) for number in numbers)
        if gone > 0:
            number = next(k for k in range(first, first + int(count)) if k not in numbers)
            name = f"{head}{number:0{widths[key]}d}-of-{count}{tail}"
            which = "was" if gone == 1 else f"and {gone - 1} more of {int(count)} parts were"
            yield Problem(name, f"{which} not read, though other parts of it were; fetch what is missing", True)
