"""Checkpoints split into numbered parts (``model-00001-of-00003.safetensors``), and what is missing of them.

Hugging Face, MLX and llama.cpp split checkpoints in this way. A download that stopped, one part given by itself, or a
part without a tensor that the index beside it names would otherwise pass for the whole.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator

import msgspec

from tensordiff.dump.files import in_memory, open_buffer
from tensordiff.dump.folders import DumpPath
from tensordiff.dump.model import Dump, Problem
from tensordiff.errors import BadFile, printable

_PART = re.compile(r"(?P<head>.*?)(?P<number>\d{1,6})-of-(?P<count>\d{1,6})(?P<tail>\.[^/]*)")


def single_part_problem(file: str) -> Iterator[Problem]:
    """Report a file that was given by itself and is one of several parts."""
    if (match := _PART.fullmatch(file)) is not None and int(match["count"]) > 1:
        why = f"is one of {int(match['count'])} parts, and the others were not read; give their folder"
        yield Problem(file, why, is_unread=True)


def missing_parts(files: Collection[str]) -> Iterator[Problem]:
    """Report each set of parts, among the files that were read, of which some are missing."""
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
        missing = int(count) - sum(first <= number < first + int(count) for number in numbers)
        if missing > 0:
            number = next(k for k in range(first, first + int(count)) if k not in numbers)
            name = f"{head}{number:0{widths[key]}d}-of-{count}{tail}"
            which = "was" if missing == 1 else f"and {missing - 1} more of {int(count)} parts were"
            yield Problem(name, f"{which} not read, though other parts of it were; fetch what is missing", True)


_INDEX = ".safetensors.index.json"
_SHOWN = 3


class _Index(msgspec.Struct):
    """The index of a split checkpoint, with the file of each tensor."""

    weight_map: dict[str, str]


def missing_from_index(at: DumpPath, dump: Dump) -> Iterator[Problem]:
    """Report each file that lacks tensors which an index beside it places there."""
    names = {entry.name for entry in dump.entries}
    reported = {problem.file for problem in dump.problems}
    for index in (name for name in at.files if name.endswith(_INDEX)):
        missing: dict[str, list[str]] = defaultdict(list)
        for tensor, file in _weight_map(at, index).items():
            if tensor not in names and file not in reported:
                missing[file].append(tensor)
        for file, tensors in missing.items():
            some = f"{', '.join(map(repr, tensors[:_SHOWN]))}{', …' if len(tensors) > _SHOWN else ''}"
            which = f"has not all tensors that {index} names, but lacks {len(tensors)} ({some:.300})"
            yield Problem(printable(file), f"{which}; fetch it again", is_unread=True)


def _weight_map(at: DumpPath, index: str) -> dict[str, str]:
    """The file of each tensor; empty if the file is not an index."""
    try:
        return msgspec.json.decode(in_memory(open_buffer(at.path / index)), type=_Index).weight_map
    except (BadFile, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}  # the tensors can be read without it
