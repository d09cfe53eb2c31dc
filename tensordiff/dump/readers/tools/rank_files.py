"""A file for each rank: ``rank0.pt``, ``rank1.pt``, whatever the tensors in them are called.

What a DTensor says of its placement decides how the parts make the whole; without one, shapes and values do.
"""

from __future__ import annotations

import re

from tensordiff.dump.folders import DumpPath
from tensordiff.dump.model import Dump, Problem
from tensordiff.dump.ranks import RankPart, Split, join_ranks
from tensordiff.dump.readers import Format
from tensordiff.dump.readers.safetensors import open_file as open_safetensors
from tensordiff.dump.readers.torch.reader import InArchive, open_file
from tensordiff.dump.readers.torch.walk import DTensorPlacement
from tensordiff.errors import BadFile

FORMAT = "ranks"
FORMATS = (
    Format(
        FORMAT,
        "a file for each rank of a run",
        "two or more files that differ in `rank` and a number alone (`rank0.pt`, `acts_rank_1.safetensors`)",
        "that in which the files were filled, where they are torch files",
    ),
)

_FILE = re.compile(r"^(.*?)(?:tp_)?rank[_-]?(\d{1,6})(.*)\.(pt|pth|safetensors)$", re.IGNORECASE)


def try_open(at: DumpPath) -> Dump | None:
    """Open a folder in which every tensor file is one rank's."""
    tensors = at.with_suffix(".pt", ".pth", ".safetensors") if at.is_folder else []
    matches = [(name, match) for name in tensors if (match := _FILE.match(name))]
    outlines = {(match[1], match[3], match[4]) for _, match in matches}
    if len(matches) < 2 or len(matches) != len(tensors) or len(outlines) != 1:
        return None
    parts: list[RankPart] = []
    problems: list[Problem] = list(at.problems)
    is_ordered = True
    for name, match in matches:
        is_torch = not name.endswith(".safetensors")
        try:
            part = (open_file if is_torch else open_safetensors)(at.path / name)
        except BadFile as error:
            problems.append(Problem(name, error.problem, is_unread=True))
            continue
        problems += part.problems
        is_ordered = is_ordered and part.ordered
        for item in part.entries:
            placement = item.stored.found.placement if isinstance(item.stored, InArchive) else None
            parts.append(RankPart(int(match[2]), item, _split(placement)))
    if not parts:
        raise BadFile(at.path, problems[-1].sentence)
    joined = join_ranks(parts)
    return Dump(at.path, FORMAT, joined.entries, is_ordered, (*problems, *joined.problems), files=frozenset(tensors))


def _split(placement: DTensorPlacement | None) -> Split | None:
    """How a DTensor is divided; None where it is in more than one way, or is none."""
    if placement is None:
        return None
    divided = [one for one in placement.placements if one != "replicate"]
    if not divided:
        return "replicated"
    if len(divided) > 1:
        return None
    only = divided[0]
    return "sum" if only == "partial" else int(only)
