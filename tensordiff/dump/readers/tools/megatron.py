"""Megatron's activation dumps: ``iter_0000001/mp_rank_<tp>[_<pp>][_<ep>].pth``, one file a rank.

A file holds ``{"model_chunk0": {"<module>/input0": tensor, …}}`` in the order that modules ran. Iterations are
steps; pipeline stages follow one another, and number their layers from 0 each.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from tensordiff.dump.folders import DumpPath, list_below
from tensordiff.dump.model import Dump, Entry, Problem
from tensordiff.dump.ranks import RankPart, join_ranks
from tensordiff.dump.readers import Format
from tensordiff.dump.readers.torch.reader import open_file
from tensordiff.errors import BadFile

FORMAT = "megatron"
FORMATS = (
    Format(
        FORMAT,
        "Megatron's activations, of several iterations and ranks",
        "`mp_rank_*.pth`, in the folder, under `iter_*/` or `activations/iter_*/`, whose keys hold `/input0`",
        "that in which a file was filled; pipeline stages one after the other",
    ),
)

_FILE = re.compile(r"^mp_rank_(\d{1,6})(?:_(\d{1,6}))?(?:_(\d{1,6}))?\.pth$")
_ITERATION = re.compile(r"^iter_(\d{1,12})$")
_CHUNK = re.compile(r"^model_chunk(\d+)\.")
_PORT = re.compile(r"^(.*)/(?:(input|output)(\d+)|([A-Za-z_]\w*))$", re.DOTALL)
_LAYER = re.compile(r"(?<![^.])layers\.(\d{1,6})(?=\.|$)")


class _RankFile(NamedTuple):
    path: Path
    step: int
    tp: int
    pp: int
    ep: int


def try_open(at: DumpPath) -> Dump | None:
    """Open a folder of iterations, or one iteration."""
    files, top = _find(at) if at.is_folder else ([], frozenset[str]())
    if not files:
        return None
    parts: list[RankPart] = []
    problems: list[Problem] = list(at.problems)
    blocks: dict[int, int] = defaultdict(int)
    is_ours = False
    for file in sorted(files, key=lambda file: (file.step, file.pp, file.ep, file.tp)):
        try:
            part = open_file(file.path)
        except BadFile as error:
            problems.append(Problem(str(file.path.relative_to(at.path)), error.problem, is_unread=True))
            continue
        is_ours = is_ours or any(_PORT.match(e.name) for e in part.entries[:50])
        problems += (p._replace(file=str(file.path.relative_to(at.path))) for p in part.problems)
        first = blocks[file.step] if file.pp else 0
        entries = [_entry(e, file.step, first) for e in part.entries]
        parts += (RankPart(file.ep * 10_000 + file.tp, e) for e in entries)
        if not _is_last_of_stage(file, files):
            continue
        numbers = [int(m[1]) for e in entries if (m := _LAYER.search(e.layer))]
        blocks[file.step] = max([blocks[file.step], *(number + 1 for number in numbers)])
    if not is_ours:
        return None
    joined = join_ranks(parts)
    return Dump(at.path, FORMAT, joined.entries, True, (*problems, *joined.problems), files=top)


def _is_last_of_stage(file: _RankFile, files: list[_RankFile]) -> bool:
    stage = [f for f in files if (f.step, f.pp) == (file.step, file.pp)]
    return file == max(stage, key=lambda f: (f.ep, f.tp))


def _find(at: DumpPath) -> tuple[list[_RankFile], frozenset[str]]:
    if ours := [name for name in at.files if _FILE.match(name)]:
        return [_rank_file(at.path / name, 0) for name in ours], frozenset(ours)
    folder, folders, top = at.path, at.folders, None
    if "activations" in folders:
        folder, top = at.path / "activations", "activations"
        folders = list_below(folder).folders
    iterations = [name for name in folders if _ITERATION.match(name)]
    found = [
        _rank_file(folder / name / file, step)
        for step, name in enumerate(iterations)
        for file in list_below(folder / name).files
        if _FILE.match(file)
    ]
    return found, frozenset((top,) if top else iterations)


def _rank_file(path: Path, step: int) -> _RankFile:
    match = _FILE.match(path.name)
    numbers = [int(part or 0) for part in match.groups()] if match else [0, 0, 0]
    return _RankFile(path, step, *numbers)


def _entry(item: Entry, step: int, first_block: int) -> Entry:
    chunk = _CHUNK.match(item.name)
    name = item.name[chunk.end() :] if chunk and chunk[1] == "0" else item.name
    match = _PORT.match(name)
    if match is None:
        return item._replace(step=step)
    layer = match[1]
    if first_block:
        layer = _LAYER.sub(lambda m: f"layers.{int(m[1]) + first_block}", layer)
        name = f"{layer}{name[len(match[1]) :]}"
    port = f"{match[2]}_{match[3]}" if match[2] else f"input_{match[4]}"
    return item._replace(name=name, layer=layer, port="output" if port == "output_0" else port, step=step)
