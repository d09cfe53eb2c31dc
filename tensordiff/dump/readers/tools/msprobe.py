"""msprobe (MindStudio): ``step0/rank0/dump.json`` with inputs and outputs of each module, and a file for each tensor.

``dump.json`` lists modules as they ended, ``construct.json`` as they began. A key is
``Module.<path>.<Class>.forward.<call>``; the class is not part of the layer, since the two sides of a comparison may
differ in it. With ``task: statistics`` there are no files, and the dump holds statistics.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from tensordiff.dump.dtypes import DTYPES
from tensordiff.dump.files import map_file, open_buffer, parse_json
from tensordiff.dump.folders import DumpPath, list_below
from tensordiff.dump.leftovers import is_named_as_tensors, unread_within
from tensordiff.dump.model import Dump, Entry, Origin, Problem, StoredTensor
from tensordiff.dump.names import natural_key
from tensordiff.dump.ranks.joined_tensor import RankPart
from tensordiff.dump.ranks.ranks import join_ranks
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
        "msprobe's L0, L1 and mix dumps and what `save` was given, of several steps and ranks; task `statistics` as "
        "statistics",
        "`dump.json` or `debug.json` with `task` and `data`, in the folder or under `step*/rank*/` (`proc*`)",
        "`construct.json` and `dump.json`",
    ),
)

DUMP, CONSTRUCT, DATA = "dump.json", "construct.json", "dump_tensor_data"
SAVED = "debug.json"
"""The tensors given to ``PrecisionDebugger.save``, under names that the user chose."""
_STATISTICS = ("max", "min", "mean", "rms")
_MODULE = re.compile(r"^(?:Module|Cell)\.(.+)\.([^.]+)\.(forward|backward|parameters_grad)(?:\.(\d{1,9}))?$", re.DOTALL)
_SAVED_NAME = re.compile(r"^(.+)\.(\d{1,9})\.debug$", re.DOTALL)
_FUNCTION = re.compile(r"^(.+?)\.(\d{1,9})\.(forward|backward)$", re.DOTALL)
_RANK = re.compile(r"rank_?(\d{1,9})")
_STEP = re.compile(r"step_?(\d{1,9})")
_MOST_DEPTH = 16
_TOO_DEEP = f"what lies deeper than {_MOST_DEPTH} levels"
_BIG = 1 << 62


class RankFolder(NamedTuple):
    """The folder of one rank in one step."""

    path: Path
    step: int
    rank: int


class Call(NamedTuple):
    """The meaning of a key of ``dump.json``."""

    layer: str
    module_class: str | None
    call: int
    is_backward: bool


def try_open(at: DumpPath) -> Dump | None:
    """Open a folder of steps, of ranks, or of one rank."""
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
    data = (f.path / DATA for f in folders if (f.path / DATA).is_dir())
    read = [place / name for place in data for name in list_below(place).files]
    problems += unread_within(at, taken, read)
    return Dump(
        at.path, FORMAT, joined.entries, True, (*problems, *joined.problems),
        statistics=_STATISTICS if kinds == {False} else (), files=frozenset(taken),
    )  # fmt: skip


def _rank_folders(at: DumpPath) -> list[RankFolder]:
    if (listed := _index_in(at.files)) and (DATA in at.folders or _is_dump(at.path / listed)):
        return [RankFolder(at.path, 0, 0)]
    step_paths: list[tuple[int, Path]] = []
    for name in at.folders:
        step = _STEP.fullmatch(name)
        if step is None and not _RANK.fullmatch(name) and not name.startswith("proc"):
            continue
        below = list_below(at.path / name)
        if _index_in(below.files):
            step_paths.append((0, at.path / name))
        elif step is not None:
            inner = (at.path / name / n for n in below.folders if _RANK.fullmatch(n) or n.startswith("proc"))
            step_paths += ((int(step[1]), path) for path in inner if _index_in(list_below(path).files))
    folders = []
    for step_number in sorted({step for step, _ in step_paths}):
        paths = sorted(
            (path for step, path in step_paths if step == step_number), key=lambda path: natural_key(path.name)
        )
        for index, path in enumerate(paths):
            match = _RANK.fullmatch(path.name)
            folders.append(RankFolder(path, step_number, int(match[1]) if match else index))
    return folders if all(_is_dump(_index_of(folder.path)) for folder in folders[:1]) else []


def _index_in(files: Collection[str]) -> str | None:
    """The file that lists a rank's tensors: that of its modules, otherwise that of what the user saved."""
    return next((name for name in (DUMP, SAVED) if name in files), None)


def _index_of(folder: Path) -> Path:
    return folder / (DUMP if (folder / DUMP).is_file() else SAVED)


def _is_dump(path: Path) -> bool:
    head = open_buffer(path)[:400]
    return b'"task"' in head and (b'"level"' in head or b'"data"' in head)


def _open_rank(folder: RankFolder) -> tuple[list[Entry], list[Problem], bool]:
    index = _index_of(folder.path)
    content = _load(index)
    data = content.get("data")
    if not isinstance(data, dict):
        raise BadFile(index, "lists no data; was msprobe stopped before it ended?")
    has_values = content.get("task") not in ("statistics", "structure")
    files = set(list_below(folder.path / DATA).files) if has_values and (folder.path / DATA).is_dir() else set()
    entries: list[Entry] = []
    problems: list[Problem] = []
    used: set[str] = set()
    empty: list[str] = []
    for key, about in data.items():
        call = _call(key)
        leaves = _nested_leaves("output", about, 0) if _SAVED_NAME.match(key) else _leaves(about)
        for port, leaf in leaves:
            stored, problem = _stored(folder.path / DATA, files, leaf, has_values)
            problems += [problem] if problem else []
            used.add(str(leaf.get("data_name")))
            if stored is not None:
                entries.append(_entry(key, call, port, stored, folder.step))
            elif not has_values:
                empty.append(f"{key} {port}")
    if empty:
        what = f"{len(empty)} tensors have no statistics that can be compared (null, or sums that overflowed)"
        problems.append(Problem(index.name, f"{what}, first {empty[0]!r:.120}; they are left out", is_unread=True))
    problems += (
        Problem(f"{DATA}/{name}", f"is named nowhere in {index.name}; it is not read", is_unread=True)
        for name in sorted(files - used)
        if is_named_as_tensors(name)
    )
    rank = _rank(folder.path / CONSTRUCT, list(data))
    entries.sort(key=lambda e: rank.get(LayerEvent(e.name.rpartition(" ")[0], e.is_input), len(rank)))
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
        return Call(match[1], match[2], int(match[4] or 0) + 1, match[3] != "forward")
    if match := _SAVED_NAME.match(key):
        return Call(match[1], None, int(match[2]) + 1, False)
    if match := _FUNCTION.match(key):
        return Call(match[1], None, int(match[2]) + 1, match[3] == "backward")
    return Call(key, None, 1, key.endswith("backward"))


def _entry(key: str, call: Call, port: str, stored: StoredTensor, step: int) -> Entry:
    layer, name = f"{call.layer}.grad" if call.is_backward else call.layer, f"{key} {port}"
    if port.startswith("parameter_"):
        # A parameter is something that an output depends on, so it is an input; its gradient is an output.
        name_of_it = port.removeprefix("parameter_")
        layer = f"{call.layer}.{name_of_it}.grad" if call.is_backward else f"{layer}.{name_of_it}"
        port = "output" if call.is_backward else "input_parameter"
    return Entry(name, layer, port, call.call, step, stored, Origin(call.module_class))


_PARTS = {
    "input_args": "input", "input_kwargs": "input", "output": "output", "parameters": "parameter", "input": "input",
    "grad_input": "input", "grad_output": "output", "output_args": "output",
}  # fmt: skip


def _leaves(about: object) -> Iterator[tuple[str, dict[str, object]]]:
    if not isinstance(about, dict):
        return
    for part, kind in _PARTS.items():
        value = about.get(part)
        if isinstance(value, list) and len(value) == 1 and kind == "output":
            value = value[0]
        yield from _nested_leaves(kind, value, 0)
    if not about.keys() & _PARTS.keys():  # gradients of parameters, by name
        for name, value in about.items():
            yield from _nested_leaves(
                f"parameter_{name}", value[0] if isinstance(value, list) and len(value) == 1 else value, 0
            )


def _nested_leaves(port: str, value: object, depth: int) -> Iterator[tuple[str, dict[str, object]]]:
    if isinstance(value, dict) and isinstance(value.get("type"), str) and "shape" in value:
        yield port, value
    elif isinstance(value, dict | list) and depth >= _MOST_DEPTH:
        yield port, {"data_name": _TOO_DEEP}
    elif isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, below in items:
            yield from _nested_leaves(f"{port}_{key}", below, depth + 1)


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
    if not isinstance(shape, list) or not all(type(n) is int and 0 < n < _BIG for n in shape):
        return None
    if not all(type(n) is float or (type(n) is int and abs(n) < _BIG) for n in numbers):
        return None
    count = math.prod(shape)
    if count >= _BIG:
        return None
    largest, smallest, mean, norm = (float(n) for n in numbers)  # type: ignore[arg-type]
    if math.isfinite(largest) and math.isfinite(smallest) and not math.isfinite(mean + norm):
        return None  # the sums overflowed, as they do for masks; nothing else is wrong with the tensor
    values = {"max": largest, "min": smallest, "mean": mean, "rms": norm / count**0.5}
    return StatisticsTensor(values, _STATISTICS, DTYPES["float32"])
