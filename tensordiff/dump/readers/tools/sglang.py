"""SGLang's dumper: a file for each tensor whose name is ``key=value`` pairs joined by ``___``, or a file for each pass.

Old files hold a bare tensor and count ``forward_pass_id``; newer ones hold ``{"value", "meta"}`` and count ``step``.
The order is ``dump_index``, separately for each rank, and it is not part of a name. ``meta`` may say how a tensor is
split: ``dims = "b s h[tp]"``. The pass files of its tensor hook, ``TP0_PP0_Rank0_pid7/Pass00000.pt``, hold a whole pass
each; what precedes the first embedding in one belongs to the previous pass.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tensordiff.dump.folders import DumpPath, list_below
from tensordiff.dump.leftovers import unread_within
from tensordiff.dump.model import Dump, Entry, Problem
from tensordiff.dump.names import parse_name
from tensordiff.dump.ranks.joined_tensor import MeshPlacement, RankPart, Split, Zigzag
from tensordiff.dump.ranks.ranks import join_ranks
from tensordiff.dump.readers import Format
from tensordiff.dump.readers.torch.archive import open_archive
from tensordiff.dump.readers.torch.reader import TorchFile, open_file
from tensordiff.errors import BadFile

FORMAT = "sglang"
FORMATS = (
    Format(
        FORMAT,
        "SGLang's dumper (old, new, non-intrusive) and its pass files, of several ranks",
        "`.pt` files named `…___name=…`, in the folder or in one below it; `TP*_PP*_Rank*/Pass*.pt`",
        "`dump_index`; in pass files, the order they were filled in",
    ),
)

_SEPARATOR = "___"
_PASS = re.compile(r"^Pass(\d{1,9})\.pt$")
_RANK_FOLDER = re.compile(r"^TP(\d+)_PP(\d+)_Rank(\d+)(?:_pid\d+)?$")
_EMBEDDING = re.compile(r"(?i)embed|(?:^|\.)wte$")
_HOOK_PREFIX = "non_intrusive__"
_IN_LAYER: dict[str, tuple[str, str | None]] = {
    "layer": ("", None), "attn": ("self_attn", None),
    "layer_start__hidden_states": ("", "input_0"), "layer_end__hidden_states": ("", "output"),
}  # fmt: skip
"""What its own models call a layer's parts: the part, and the port if the name says it."""
_DIM = re.compile(r"^(?:[A-Za-z_1]\w*|\([\w*]+\))(?:\[([^\]]*)\]|\(([^)]*)\))?$")
"""An axis, and what splits it: ``h[tp]``, ``s[cp:zigzag,sp]``, ``h[tp:partial]``; older ``h(tp,partial)``."""
_MESH = frozenset(("tp", "cp", "ep", "sp", "etp", "pp", "dp", "attn_tp", "moe_tp"))


class _File(NamedTuple):
    path: Path
    fields: dict[str, str]

    def number(self, *keys: str) -> int:
        return next((int(self.fields[k]) for k in keys if self.fields.get(k, "").isdecimal()), 0)


def try_open(at: DumpPath) -> Dump | None:
    """Open a folder of the dumper, one that contains such a folder, or one of pass files."""
    if not at.is_folder:
        return None
    if any(_RANK_FOLDER.match(name) for name in at.folders) or any(map(_PASS.match, at.files)):
        return _open_passes(at)
    files = _named(at.path, at.files)
    taken = {file.path.name for file in files}
    for name in () if files else at.folders:
        below = _named(at.path / name, list_below(at.path / name).files)
        taken |= {name} if below else set()
        files += below
    return _open_files(at, files, taken) if files else None


def _named(folder: Path, names: list[str]) -> list[_File]:
    return [
        _File(folder / name, dict(part.split("=", 1) for part in name[: -len(".pt")].split(_SEPARATOR) if "=" in part))
        for name in names
        if _SEPARATOR in name and "name=" in name and name.endswith(".pt")
    ]


def _open_files(at: DumpPath, files: list[_File], taken: set[str]) -> Dump:
    problems: list[Problem] = list(at.problems)
    first_pass = min(file.number("step", "forward_pass_id") for file in files)
    calls: Counter[tuple[object, ...]] = Counter()
    parts: list[RankPart] = []
    for file in sorted(files, key=lambda f: (f.number("step", "forward_pass_id"), _rank(f), f.number("dump_index"))):
        step, rank = file.number("step", "forward_pass_id") - first_pass, _rank(file)
        layer, port = place_of(file.fields["name"], file.fields.get("layer_id"))
        key = (step, rank, layer, port, file.fields.get("recompute_status"))
        calls[key] += 1
        name = f"{layer}-{port}" if calls[key] == 1 else f"{layer}({calls[key]})-{port}"
        try:
            placements = _placements(file, rank)
        except BadFile as error:
            problems.append(Problem(str(file.path.relative_to(at.path)), error.problem, is_unread=True))
            continue
        stored = TorchFile(str(file.path.parent), file.path.name)
        parts.append(RankPart(rank, Entry(name, layer, port, calls[key], step, stored), placements))
    joined = join_ranks(parts)
    problems += unread_within(at, taken, [file.path for file in files])
    return Dump(at.path, FORMAT, joined.entries, True, (*problems, *joined.problems), files=frozenset(taken))


def _rank(file: _File) -> int:
    return file.number("tp_rank", "rank") if "rank" not in file.fields else file.number("rank")


def place_of(name: str, layer_id: str | None) -> tuple[str, str]:
    """Layer and port from the name that a tensor was dumped under."""
    for prefix in ("grad__", "param__"):
        if name.startswith(prefix):
            layer, port = place_of(name.removeprefix(prefix), layer_id)
            return f"{layer}.{prefix[:-2]}", port
    hooked = name.startswith(_HOOK_PREFIX)
    layer, port = _parse_hooked_name(name.removeprefix(_HOOK_PREFIX)) if hooked else parse_name(name)[:2]
    number = layer_id if layer_id is not None and layer_id.isdecimal() else None
    if number is None or re.search(rf"(?<![^.]){number}(?![^.])", layer):
        return layer, port
    if layer in _IN_LAYER:
        layer, port = _IN_LAYER[layer][0], _IN_LAYER[layer][1] or port
    port = "input_0" if port == "input" else port
    return f"layers.{number}.{layer}".rstrip("."), port


def _parse_hooked_name(name: str) -> tuple[str, str]:
    """Parse ``model.layers.0.mlp.inputs.0`` and ``….output.1``."""
    match = re.match(r"^(?:(.*)\.)?(inputs|output)(?:\.(.+))?$", name, re.DOTALL)
    if match is None:
        return name, "output"
    kind = "input" if match[2] == "inputs" else "output"
    return match[1] or "model", f"{kind}_{match[3].replace('.', '_')}" if match[3] else kind


def _placements(file: _File, rank: int) -> tuple[MeshPlacement, ...] | None:
    """How a tensor is split among ranks, if its metadata says so; otherwise None."""
    value = open_archive(file.path).value
    meta = value.get("meta") if isinstance(value, dict) else None
    dims = meta.get("dims") if isinstance(meta, dict) else None
    if not isinstance(meta, dict) or not isinstance(dims, str) or len(dims) > 200:
        return None
    splits = _splits(dims.partition("#")[0])
    if splits is None:
        return None
    places = {axis: _mesh_position(axis, meta, file) for axis, _ in splits}
    if len(splits) == 1 and places[splits[0][0]] is None:
        places[splits[0][0]] = rank  # with one axis the ranks lie along it
    positions = [(places[axis], split) for axis, split in splits]
    return (
        None
        if any(at is None for at, _ in positions)
        else tuple(MeshPlacement(at, how) for at, how in positions if at is not None)
    )


def _splits(dims: str) -> list[tuple[str, Split]] | None:
    """What each axis of the mesh splits; None for metadata of an unknown kind."""
    splits: list[tuple[str, Split]] = []
    for axis, dim in enumerate(dims.split()):
        match = _DIM.match(dim)
        if match is None:
            return None
        for mark in re.split(r",(?!zigzag|natural|partial|sharded)", match[1] or match[2] or ""):
            words = [word.strip() for word in re.split(r"[:+,]", mark) if word.strip()]
            if words and words[0] not in _MESH:
                return None
            if words:
                split: Split = "sum" if "partial" in words else Zigzag(axis) if "zigzag" in words else axis
                splits.append((words[0], split))
    return splits


def _mesh_position(axis: str, meta: dict[object, object], file: _File) -> int | None:
    """A rank's position on an axis of the mesh, from the metadata or the file name."""
    notes = [about for key, about in meta.items() if str(key).endswith("parallel_info") and isinstance(about, dict)]
    for about in (*notes, meta):
        if type(place := about.get(f"{axis}_rank")) is int:
            return place
    written = file.fields.get(f"{axis}_rank", "")
    return int(written) if written.isdecimal() else None


class _Pass(NamedTuple):
    rank: int
    number: int
    path: Path


def _open_passes(at: DumpPath) -> Dump | None:
    passes = [_Pass(0, int(m[1]), at.path / n) for n in at.files if (m := _PASS.match(n))]
    for name in at.folders:
        if match := _RANK_FOLDER.match(name):
            inside = list_below(at.path / name).files
            passes += (_Pass(int(match[3]), int(m[1]), at.path / name / n) for n in inside if (m := _PASS.match(n)))
    if not passes:
        return None
    problems: list[Problem] = list(at.problems)
    parts: list[RankPart] = []
    for rank in sorted({one.rank for one in passes}):
        entries, found = _rank_passes(at, sorted(one for one in passes if one.rank == rank))
        parts += (RankPart(rank, item) for item in entries)
        problems += found
    if not parts:
        raise BadFile(at.path, problems[-1].sentence)
    joined = join_ranks(parts)
    taken = {one.path.relative_to(at.path).parts[0] for one in passes}
    taken |= {name for name in at.folders if _RANK_FOLDER.match(name)}
    problems += unread_within(at, taken, [one.path for one in passes])
    return Dump(at.path, FORMAT, joined.entries, True, (*problems, *joined.problems), files=frozenset(taken))


def _rank_passes(at: DumpPath, passes: list[_Pass]) -> tuple[list[Entry], list[Problem]]:
    """The entries of one rank; what precedes the first embedding in a file belongs to the previous pass."""
    entries: list[Entry] = []
    numbers = {one.number for one in passes}
    missing = next((number for number in range(len(passes)) if number not in numbers), None)
    problems = (
        [Problem(f"Pass{missing:05}.pt", "is not there, and later passes are; was it copied?", True)]
        if missing is not None
        else []
    )
    start: str | None = None
    for step, one in enumerate(passes):
        try:
            part = open_file(one.path)
        except BadFile as error:
            problems.append(Problem(str(one.path.relative_to(at.path)), error.problem, is_unread=True))
            continue
        start = start or _first_layer(part.entries)
        before = {item.layer for item in entries if item.step == step - 1}
        begins = _pass_start(part.entries, start, before)
        for index, item in enumerate(part.entries):
            entries.append(item._replace(step=max(step - 1, 0) if index < begins else step))
        problems += (p._replace(file=str(one.path.relative_to(at.path))) for p in part.problems)
    return entries, problems


def _first_layer(entries: list[Entry]) -> str | None:
    """The layer that a pass begins with: its embedding, otherwise the first layer, as in a later pipeline stage."""
    return next((e.layer for e in entries if _EMBEDDING.search(e.layer)), entries[0].layer if entries else None)


def _pass_start(entries: list[Entry], start: str | None, before: set[str]) -> int:
    """Where a pass begins in its file; a file without a beginning holds the rest of the previous pass."""
    first = next((i for i, e in enumerate(entries) if e.layer == start), None)
    if first is not None:
        return first
    is_rest = bool(before) and not any(item.layer in before for item in entries)
    return len(entries) if is_rest else 0
