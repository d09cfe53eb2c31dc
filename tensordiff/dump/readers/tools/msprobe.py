"""msprobe (MindStudio): ``step0/rank0/dump.json`` with what each module took and gave, and a file for each tensor.

``dump.json`` lists modules as they ended, ``construct.json`` as they began. A key is
``Module.<path>.<Class>.forward.<call>``; the class is no part of the layer, since the two sides of a comparison may
differ in it. With ``task: statistics`` there are no files, and the dump is one of statistics.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tensordiff.dump.dtypes import DTYPES
from tensordiff.dump.files import map_file, parse_json
from tensordiff.dump.folders import DumpPath, list_below
from tensordiff.dump.leftovers import is_named_as_tensors
from tensordiff.dump.model import Dump, Entry, Origin, Problem, StoredTensor
from tensordiff.dump.names import natural_key
from tensordiff.dump.ranks import RankPart, join_ranks
from tensordiff.dump.readers import Format
from tensordiff.dump.readers.npy import NpyFile
from tensordiff.dump.readers.torch.reader import TorchFile
from tensordiff.dump.readers.verify_layers import LayerEvent, events_of_leaves, events_of_nested
from tensordiff.dump.statistics import StatisticsTensor
from tensordiff.errors import BadFile

FORMAT = "msprobe"
FORMATS = (
    Format(
        FORMAT,
        "msprobe's L0 and L1 dumps, of several steps and ranks; task `statistics` as statistics",
        "`dump.json` with `task` and `data`, in the folder or under `step*/rank*/` (`proc*`)",
        "`construct.json` and `dump.json`",
    ),
)

DUMP, CONSTRUCT, DATA = "dump.json", "construct.json", "dump_tensor_data"
_STATISTICS = ("max", "min", "mean", "rms")
_MODULE = re.compile(r"^(?:Module|Cell)\.(.+)\.([^.]+)\.(forward|backward)\.(\d{1,9})$", re.DOTALL)
_FUNCTION = re.compile(r"^(.+?)\.(\d{1,9})\.(forward|backward)$", re.DOTALL)
_RANK = re.compile(r"rank_?(\d{1,9})")
_STEP = re.compile(r"step_?(\d{1,9})")
_DEEPEST = 16


class RankFolder(NamedTuple):
    """Where one rank of one step lies."""

    path: Path
    step: int
    rank: int


class Call(NamedTuple):
    """What a key of ``dump.json`` says."""

    layer: str
    module_class: str | None
    call: int
    is_backward: bool


def try_open(at: DumpPath) -> Dump | None:
    """Open a folder of steps, of ranks, or that of one rank."""
    folders = _rank_folders(at) if at.is_folder else []
    if not folders:
        return None
    parts: list[RankPart] = []
    problems: list[Problem] = list(at.problems)
    kinds: set[bool] = set()
    for folder in folders:
        prefix = str(folder.path.relative_to(at.path))
        try:
            entries, found, has_values = _open_rank(folder)
        except BadFile as error:
            problems.append(Problem(f"{prefix}/{Path(error.path).name}", error.problem, is_unread=True))
            continue
        kinds.add(has_values)
        parts += (RankPart(folder.rank, entry) for entry in entries)
        problems += (p._replace(file=p.file if prefix == "." else f"{prefix}/{p.file}") for p in found)
    if not parts:
        raise BadFile(at.path, problems[-1].sentence if problems else "holds no tensors; was msprobe stopped?")
    joined = join_ranks(parts)
    taken = {p.relative_to(at.path).parts[0] for p in (f.path for f in folders) if p != at.path} or {DATA}
    return Dump(
        at.path, FORMAT, joined.entries, True, (*problems, *joined.problems),
        statistics=_STATISTICS if kinds == {False} else (), files=frozenset(taken),
    )  # fmt: skip


def _rank_folders(at: DumpPath) -> list[RankFolder]:
    if DUMP in at.files and (DATA in at.folders or _is_dump(at.path / DUMP)):
        return [RankFolder(at.path, 0, 0)]
    found: list[tuple[int, Path]] = []
    for name in at.folders:
        step = _STEP.fullmatch(name)
        if step is None and not _RANK.fullmatch(name) and not name.startswith("proc"):
            continue
        below = list_below(at.path / name)
        if DUMP in below.files:
            found.append((0, at.path / name))
        elif step is not None:
            inner = (at.path / name / n for n in below.folders if _RANK.fullmatch(n) or n.startswith("proc"))
            found += ((int(step[1]), path) for path in inner if DUMP in list_below(path).files)
    folders = []
    for step_number in sorted({step for step, _ in found}):
        paths = sorted((path for step, path in found if step == step_number), key=lambda path: natural_key(path.name))
        for index, path in enumerate(paths):
            match = _RANK.fullmatch(path.name)
            folders.append(RankFolder(path, step_number, int(match[1]) if match else index))
    return folders if all(_is_dump(folder.path / DUMP) for folder in folders[:1]) else []


def _is_dump(path: Path) -> bool:
    head = map_file(path)[:400]
    return b'"task"' in head and (b'"level"' in head or b'"data"' in head)


def _open_rank(folder: RankFolder) -> tuple[list[Entry], list[Problem], bool]:
    content = _load(folder.path / DUMP)
    data = content.get("data")
    if not isinstance(data, dict):
        raise BadFile(folder.path / DUMP, "lists no data; was msprobe stopped before it ended?")
    has_values = content.get("task") not in ("statistics", "structure")
    files = set(list_below(folder.path / DATA).files) if has_values and (folder.path / DATA).is_dir() else set()
    entries: list[Entry] = []
    problems: list[Problem] = []
    used: set[str] = set()
    for key, about in data.items():
        call = _call(key)
        for port, leaf in _leaves(about if isinstance(about, dict) else {}):
            stored, problem = _stored(folder.path / DATA, files, leaf, has_values)
            problems += [problem] if problem else []
            used.add(str(leaf.get("data_name")))
            if stored is not None:
                entries.append(_entry(key, call, port, stored, folder.step))
    problems += (
        Problem(f"{DATA}/{name}", "is named nowhere in dump.json; it is not read", is_unread=True)
        for name in sorted(files - used)
        if is_named_as_tensors(name)
    )
    rank = _rank(folder.path / CONSTRUCT, list(data))
    position = {id(e): i for i, e in enumerate(entries)}
    entries.sort(
        key=lambda e: (rank.get(LayerEvent(e.name.rpartition(" ")[0], e.is_input), len(rank)), position[id(e)])
    )
    return entries, problems, has_values


def _load(path: Path) -> dict[str, object]:
    content = parse_json(map_file(path)[:], path, "it")
    if not isinstance(content, dict):
        raise BadFile(path, "is no object; was msprobe stopped before it ended?")
    return content


def _rank(construct: Path, ended: list[str]) -> dict[LayerEvent, int]:
    """The order of inputs and outputs, from how modules began and ended."""
    try:
        began = [key for key in _load(construct) if key in set(ended)] if construct.is_file() else []
    except BadFile:
        began = []
    events = events_of_nested(began, ended) if began else events_of_leaves(ended)
    return {event: index for index, event in enumerate(events)}


def _call(key: str) -> Call:
    if match := _MODULE.match(key):
        return Call(match[1], match[2], int(match[4]) + 1, match[3] == "backward")
    if match := _FUNCTION.match(key):
        return Call(match[1], None, int(match[2]) + 1, match[3] == "backward")
    return Call(key, None, 1, key.endswith("backward"))


def _entry(key: str, call: Call, port: str, stored: StoredTensor, step: int) -> Entry:
    layer, name = f"{call.layer}.grad" if call.is_backward else call.layer, f"{key} {port}"
    if port.startswith("parameter_"):
        # A parameter is one of the things an output depends on, and none of the outputs.
        layer, port = f"{layer}.{port.removeprefix('parameter_')}", "input_parameter"
    return Entry(name, layer, port, call.call, step, stored, Origin(call.module_class))


_PARTS = {
    "input_args": "input", "input_kwargs": "input", "output": "output", "parameters": "parameter", "input": "input",
    "grad_input": "input", "grad_output": "output", "output_args": "output",
}  # fmt: skip


def _leaves(about: dict[str, object]) -> Iterator[tuple[str, dict[str, object]]]:
    for part, kind in _PARTS.items():
        value = about.get(part)
        if isinstance(value, list) and len(value) == 1 and kind == "output":
            value = value[0]
        yield from _below(kind, value, 0)


def _below(port: str, value: object, depth: int) -> Iterator[tuple[str, dict[str, object]]]:
    if isinstance(value, dict) and isinstance(value.get("type"), str) and "shape" in value:
        yield port, value
    elif isinstance(value, dict | list) and depth < _DEEPEST:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, below in items:
            yield from _below(f"{port}_{key}", below, depth + 1)


def _stored(
    folder: Path, files: set[str], leaf: dict[str, object], has_values: bool
) -> tuple[StoredTensor | None, Problem | None]:
    if not has_values:
        return _statistics(leaf), None
    name = leaf.get("data_name")
    if not isinstance(name, str) or not name or name == "-1":
        return None, None  # a tensor that msprobe did not save
    if name not in files:
        return None, Problem(f"{DATA}/{name:.120}", "is named in dump.json and not there; was it copied?", True)
    return (NpyFile(folder / name) if name.endswith(".npy") else TorchFile(str(folder), name)), None


def _statistics(leaf: dict[str, object]) -> StatisticsTensor | None:
    shape = leaf.get("shape")
    numbers = [leaf.get(name) for name in ("Max", "Min", "Mean", "Norm")]
    if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape):
        return None
    if not all(type(n) in (int, float) for n in numbers):
        return None
    count = math.prod(shape)
    largest, smallest, mean, norm = (float(n) for n in numbers)  # type: ignore[arg-type]
    if math.isfinite(largest) and math.isfinite(smallest) and not math.isfinite(mean + norm):
        return None  # the sums overflowed, as they do for masks; nothing else is wrong with the tensor
    values = {"max": largest, "min": smallest, "mean": mean, "rms": norm / count**0.5}
    return StatisticsTensor(values, _STATISTICS, DTYPES["float32"])
