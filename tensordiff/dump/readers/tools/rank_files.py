"""A file for each rank: ``rank0.pt``, ``rank1.pt``, whatever the tensors in them are called.

If a tensor is a DTensor, its placement decides how the parts make the whole; otherwise shapes and values do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tensordiff.dump.folders import DumpPath, FilePart
from tensordiff.dump.model import Dump, Problem
from tensordiff.dump.ranks.joined_tensor import MeshPlacement, RankPart, Split
from tensordiff.dump.ranks.ranks import join_ranks
from tensordiff.dump.readers import Format
from tensordiff.dump.readers.npy import open_npz
from tensordiff.dump.readers.safetensors import open_file as open_safetensors
from tensordiff.dump.readers.torch.reader import InArchive, open_file, partial_dtensor_problem
from tensordiff.dump.readers.torch.walk import DTensorPlacement
from tensordiff.errors import BadFile

FORMAT = "ranks"
FORMATS = (
    Format(
        FORMAT,
        "a file for each rank of a run",
        "two or more files that differ in `rank` and a number alone (`rank0.pt`, `acts_rank_1.safetensors`)",
        "for torch files, the order in which they were filled",
    ),
)

_FILE = re.compile(r"^(.*?)(?:tp_)?rank[_-]?(\d{1,6})(.*)\.(pt|pth|safetensors|npz)$", re.IGNORECASE)


_OPEN: dict[str, Callable[[Path], FilePart]] = {
    ".pt": open_file, ".pth": open_file, ".safetensors": open_safetensors, ".npz": open_npz,
}  # fmt: skip


def try_open(at: DumpPath) -> Dump | None:
    """Open a folder in which every tensor file belongs to one rank."""
    tensors = at.with_suffix(*_OPEN) if at.is_folder else []
    matches: list[tuple[str, re.Match[str]]] = []
    for name in tensors:
        if (match := _FILE.match(name)) is None:
            return None  # mostly the first, of a hundred thousand
        matches.append((name, match))
    outlines = {(match[1], match[3], match[4]) for _, match in matches}
    if len(matches) < 2 or len(outlines) != 1:
        return None
    parts: list[RankPart] = []
    problems: list[Problem] = list(at.problems)
    is_ordered = True
    for name, match in matches:
        try:
            part = _OPEN[f".{match[4].lower()}"](at.path / name)
        except BadFile as error:
            problems.append(Problem(name, error.problem, is_unread=True))
            continue
        problems += part.problems
        is_ordered = is_ordered and part.ordered
        for item in part.entries:
            placement = item.stored.found.placement if isinstance(item.stored, InArchive) else None
            parts.append(RankPart(int(match[2]), item, _placements(placement, int(match[2]))))
    if not parts:
        raise BadFile(at.path, problems[-1].sentence)
    joined = join_ranks(parts)
    problems += (*joined.problems, *filter(None, map(partial_dtensor_problem, joined.entries)))
    return Dump(at.path, FORMAT, joined.entries, is_ordered, tuple(problems), files=frozenset(tensors))


def _placements(placement: DTensorPlacement | None, rank: int) -> tuple[MeshPlacement, ...] | None:
    """A rank's position on each axis of a DTensor's mesh; None if it is no DTensor, or its mesh is not known."""
    if placement is None:
        return None
    splits = [_split(one) for one in placement.placements]
    if len(placement.place) == len(splits):
        return tuple(map(MeshPlacement, placement.place, splits))
    if len(splits) == 1:
        return (MeshPlacement(rank, splits[0]),)
    if len(placement.mesh) != len(splits) or rank >= math.prod(placement.mesh):
        return None
    return tuple(map(MeshPlacement, map(int, np.unravel_index(rank, placement.mesh)), splits))


def _split(one: str | int) -> Split:
    if isinstance(one, int):
        return one
    return "sum" if one == "partial" else "replicated"
