"""Megatron's activation dumps: ``iter_0000001/mp_rank_<tp>[_<pp>][_<ep>].pth``, one file per rank.

A file holds ``{"model_chunk0": {"<module>/input0": tensor, …}}`` in the order that modules ran. Iterations are steps;
pipeline stages follow one another, and each numbers its layers from 0.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tensordiff.dump.folders import DumpPath, list_below
from tensordiff.dump.leftovers import unread_within
from tensordiff.dump.model import Dump, Entry, Problem
from tensordiff.dump.ranks.joined_tensor import RankPart
from tensordiff.dump.ranks.ranks import join_ranks
from tensordiff.dump.readers import Format
from tensordiff.dump.readers.torch.reader import open_file
from tensordiff.errors import BadFile

FORMAT = "megatron"
FORMATS = (
    Format(
        FORMAT,
        "Megatron's activations, of several iterations and ranks",
        "`mp_rank_*.pth`, in the folder, under `iter_*/` or `activations/iter_*/`, whose keys hold `/input0`",
        "the order in which each file was filled; pipeline stages one after the other",
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


class _Chunk(NamedTuple):
    """What one rank ran of one part of the model."""

    number: int
    file: _RankFile
    entries: list[Entry]


def try_open(at: DumpPath) -> Dump | None:
    """Open a folder of iterations, or one iteration."""
    files, top = _find(at) if at.is_folder else ([], frozenset[str]())
    if not files:
        return None
    problems: list[Problem] = list(at.problems)
    opened: list[tuple[_RankFile, list[Entry]]] = []
    for file in files:
        name = str(file.path.relative_to(at.path))
        try:
            part = open_file(file.path)
        except BadFile as error:
            problems.append(Problem(name, error.problem, is_unread=True))
            continue
        opened.append((file, part.entries))
        problems += (p._replace(file=name) for p in part.problems)
    if not any(_PORT.match(e.name) for _, entries in opened for e in entries[:50]):
        return None
    chunks = [chunk for file, entries in _with_expert_ranks(opened) for chunk in _chunks(file, entries)]
    joined = join_ranks(_parts(chunks))
    problems += (*_missing(at, files), *unread_within(at, top, [file.path for file in files]))
    return Dump(at.path, FORMAT, joined.entries, True, (*problems, *joined.problems), files=top)


def _missing(at: DumpPath, files: list[_RankFile]) -> Iterator[Problem]:
    """Report missing ranks: numbers count from 0, and stages are numbered if there are several."""
    for folder in dict.fromkeys(file.path.parent for file in files):
        here = [file for file in files if file.path.parent == folder]
        stages = {file.pp for file in here}
        is_numbered = any((match := _FILE.match(file.path.name)) and match[2] for file in here)
        gaps = any(max(ranks) >= len(ranks) for ranks in ({file.tp for file in here}, stages, {f.ep for f in here}))
        if gaps or (is_numbered and max(stages) == max(file.ep for file in here) == 0):
            name = str(here[0].path.relative_to(at.path))
            yield Problem(name, "is one of several ranks, and some are not there; were all copied?", is_unread=True)


def _with_expert_ranks(opened: list[tuple[_RankFile, list[Entry]]]) -> list[tuple[_RankFile, list[Entry]]]:
    """Without pipeline stages, the second number is the expert rank: then every file begins with the embedding."""
    later = [entries for file, entries in opened if file.pp]
    is_expert = all(not file.ep for file, _ in opened) and any("embed" in e.layer for entries in later for e in entries)
    return [(file._replace(pp=0, ep=file.pp) if is_expert else file, entries) for file, entries in opened]


def _chunks(file: _RankFile, entries: list[Entry]) -> Iterator[_Chunk]:
    by_number: dict[int, list[Entry]] = defaultdict(list)
    for item in entries:
        chunk = _CHUNK.match(item.name)
        by_number[int(chunk[1]) if chunk else 0].append(_entry(item, file))
    yield from (_Chunk(number, file, held) for number, held in by_number.items())


def _parts(chunks: list[_Chunk]) -> Iterator[RankPart]:
    """Chunks one after the other, and within each the stages; layers are numbered throughout."""
    stages: dict[tuple[int, int, int], list[_Chunk]] = defaultdict(list)
    for chunk in chunks:
        stages[chunk.file.step, chunk.number, chunk.file.pp].append(chunk)
    blocks: dict[int, int] = defaultdict(int)
    for (step, _, _), stage in sorted(stages.items()):
        numbers = [int(m[1]) for chunk in stage for e in chunk.entries if (m := _LAYER.search(e.layer))]
        is_local = bool(numbers) and min(numbers) < blocks[step]
        first = blocks[step] if is_local else 0
        blocks[step] = max([blocks[step], *(number + 1 + first for number in numbers)])
        for chunk in stage:
            rank = chunk.file.ep * 10_000 + chunk.file.tp
            yield from (RankPart(rank, _renumbered(item, first)) for item in chunk.entries)


def _find(at: DumpPath) -> tuple[list[_RankFile], frozenset[str]]:
    if at.mentions("mp_rank_") and (ours := [name for name in at.files if _FILE.match(name)]):
        return [_rank_file(at.path / name, 0) for name in ours], frozenset(ours)
    folder, folders, top = at.path, at.folders, None
    if "activations" in folders:
        folder, top = at.path / "activations", "activations"
        folders = list_below(folder).folders
    iterations = [name for name in folders if _ITERATION.match(name)]
    files = [
        _rank_file(folder / name / file, step)
        for step, name in enumerate(iterations)
        for file in list_below(folder / name).files
        if _FILE.match(file)
    ]
    return files, frozenset((top,) if top else iterations)


def _rank_file(path: Path, step: int) -> _RankFile:
    match = _FILE.match(path.name)
    numbers = [int(part or 0) for part in match.groups()] if match else [0, 0, 0]
    return _RankFile(path, step, *numbers)


def _entry(item: Entry, file: _RankFile) -> Entry:
    """An entry with the layer and port that its key gives."""
    chunk = _CHUNK.match(item.name)
    name = item.name[chunk.end() :] if chunk else item.name
    match = _PORT.match(name)
    if match is None:
        return item._replace(step=file.step)
    port = f"{match[2]}_{match[3]}" if match[2] else f"input_{match[4]}"
    return item._replace(name=name, layer=match[1], port="output" if port == "output_0" else port, step=file.step)


def _renumbered(item: Entry, first: int) -> Entry:
    """An entry of a stage whose layers count from 0; ``first`` is the number of its first layer in the model."""
    if not first:
        return item
    layer = _LAYER.sub(lambda m: f"layers.{int(m[1]) + first}", item.layer)
    return item._replace(name=f"{layer}{item.name[len(item.layer) :]}", layer=layer)
