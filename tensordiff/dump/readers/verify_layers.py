"""The output of MAX's ``verify_layers`` tool: ``torch_layers/`` or ``max_layers/``.

Each is a folder with one tensor per file, ``{layer}_input_{i}`` and ``{layer}_output[_{i}]``, beside
``layer_metadata.json``. The parent folder has ``module_names_torch.txt`` or ``module_names_max.txt``, the layers in the
order they ran.

The metadata gives each layer, its class, and the file and port of every input and output. Its paths are those of the
machine that wrote it, so only file names are used, and only of files that exist. A file's name is parsed only if the
metadata says nothing, since a layer may itself be called ``a_input_b``.

The order comes from the list, otherwise from the metadata, which has layers as they completed. Torch lists leaf layers
as they end, so a leaf's inputs come right before its outputs. MAX lists all layers as they begin, and its metadata has
them as they end: from both, inputs are placed where a layer began and outputs where it ended. A layer that ran more
than once overwrote its tensors, so only its last run counts.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tensordiff.dump.files import map_file, parse_json
from tensordiff.dump.folders import DumpPath
from tensordiff.dump.model import Dump, Entry, Origin, Problem, StoredTensor
from tensordiff.dump.names import parse_name
from tensordiff.dump.readers import Format
from tensordiff.dump.readers.max import MaxFile
from tensordiff.dump.readers.torch.reader import TorchFile
from tensordiff.errors import BadFile, NotADump, printable
from tensordiff.util.remote import RemotePath

FORMATS = (
    Format(
        "verify-layers",
        "one side of MAX's `verify_layers` tool",
        "`layer_metadata.json` beside `.pt` or `.max` files",
        "`module_names_*.txt` in the parent folder, else the metadata",
    ),
)

METADATA = "layer_metadata.json"
_MAX_BYTES = 1 << 28
_PORT = re.compile(r"(?:input|output)(?:_|$)")
_INJECTED = "_injected"
_MANGLED = str.maketrans(dict.fromkeys('\\/:?"<>| ', "_"))  # as MAX turns a label into a file's name


class LayerPort(NamedTuple):
    """The layer and port whose tensor a file holds."""

    layer: str
    port: str


class Metadata(NamedTuple):
    """The content of the metadata file. ``ports`` has file stems as keys, ``classes`` is in order of completion."""

    ports: dict[str, LayerPort]
    classes: dict[str, str | None]
    injected: list[str]
    problems: list[Problem]


NO_METADATA = Metadata({}, {}, [], [])


def mangle(label: str) -> str:
    """The stem of the file that a label is written to."""
    return label.translate(_MANGLED)


def read_metadata(path: Path) -> Metadata:
    """Read the metadata file; one that cannot be read is only a problem."""
    try:
        layers = _load(path)
    except BadFile as error:
        return NO_METADATA._replace(problems=[Problem(METADATA, error.problem)])
    ports = {stem: owner for name, about in layers.items() for stem, owner in _ports(name, about)}
    classes = {name: _text(about.get("layer_type")) for name, about in layers.items()}
    injected = [name for name, about in layers.items() if about.get("input_injection_used") is True]
    return Metadata(ports, classes, injected, [])


def _load(path: Path) -> dict[str, dict[str, object]]:
    text = map_file(path)
    if len(text) > _MAX_BYTES:
        raise BadFile(path, f"is {len(text)} bytes long, too many for layers; file names must do")
    layers = parse_json(text[:], path, "it")
    if not isinstance(layers, dict) or not all(isinstance(about, dict) for about in layers.values()):
        raise BadFile(path, "is not an object of layers; file names must do")
    return layers


def _ports(layer: str, about: dict[str, object]) -> Iterator[tuple[str, LayerPort]]:
    for kind in ("input", "output"):
        rows = about.get(f"{kind}s")
        for row in rows if isinstance(rows, list) else ():
            stem = _stem(row) if isinstance(row, dict) else None
            # The tool makes a file's name from layer and port; if they do not agree, the row is damaged.
            if stem and (port := port_of(stem, layer)) and port.startswith(kind):
                yield stem, LayerPort(layer, port)


def port_of(stem: str, layer: str) -> str | None:
    """The part after a layer's name in a file's name, if that begins with it."""
    for spelling in (layer, mangle(layer)):
        rest = stem.removeprefix(f"{spelling}_")
        if rest != stem and _PORT.match(rest):
            return rest.removesuffix(_INJECTED)
    return None


def _stem(row: dict[str, object]) -> str | None:
    """The stem of a row's file.

    Torch's rows give a file's path; MAX's give a label, under ``name`` unless that is an argument's.
    """
    if file := _text(row.get("file")):
        return re.split(r"[\\/]", file)[-1].removesuffix(".pt").removesuffix(".max")
    label = _text(row.get("file_name")) or _text(row.get("name"))
    return label and mangle(label)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


class LayerEvent(NamedTuple):
    """A layer receiving its inputs, or returning its outputs."""

    layer: str
    is_input: bool


def events_of_leaves(layers: Iterable[str]) -> list[LayerEvent]:
    """The begin and end of each layer in turn, for layers that contain no other."""
    return [LayerEvent(layer, is_input) for layer in layers for is_input in (True, False)]


def events_of_nested(began: list[str], ended: Iterable[str]) -> list[LayerEvent]:
    """Begins and ends in one order, from a list of layers as they began and one as they ended."""
    counts = Counter(began)
    # A layer in only one of the lists, or run twice, cannot be nested: it is treated as a leaf.
    ends = [layer for layer in ended if counts[layer] == 1]
    return list(_nested_events(last_runs(began), ends))


def last_runs(layers: list[str]) -> list[str]:
    """Each layer once, at its last position."""
    return list(dict.fromkeys(reversed(layers)))[::-1]


def _nested_events(began: list[str], ends: list[str]) -> Iterator[LayerEvent]:
    nested = set(ends)
    still_open: list[str] = []
    next_end = 0
    for layer in began:
        yield LayerEvent(layer, True)
        if layer not in nested:
            yield LayerEvent(layer, False)
            continue
        still_open.append(layer)
        while still_open and still_open[-1] == ends[next_end]:
            yield LayerEvent(still_open.pop(), False)
            next_end += 1
    # Lists that contradict each other leave layers open; inner ones still end before outer ones.
    yield from (LayerEvent(layer, False) for layer in reversed(still_open))


_FOLDERS = ("torch_layers", "max_layers")
_LISTS = {".pt": "module_names_torch.txt", ".max": "module_names_max.txt"}
_MAX_LIST_BYTES = 1 << 26
_CUT = re.compile(r"_(?=(?:input|output)(?:_|$))")


def try_open(at: DumpPath) -> Dump | None:
    """Open one side of a ``verify_layers`` run."""
    if not at.is_folder:
        return None
    files, suffix = at.with_suffix(".max"), ".max"
    if not files:
        files, suffix = at.with_suffix(".pt"), ".pt"
    _refuse_both(at)
    list_path = at.path.resolve().parent / _LISTS[suffix]
    return _open(at, files, suffix, list_path) if files and _is_ours(at, list_path) else None


def _refuse_both(at: DumpPath) -> None:
    path = at.path
    if all(name in at.folders for name in _FOLDERS):
        raise NotADump(
            f"{printable(path)}: holds two dumps, {_FOLDERS[0]} and {_FOLDERS[1]}; name one of them, "
            f"for example {printable(path / _FOLDERS[0])}"
        )


def _is_ours(at: DumpPath, list_path: Path) -> bool:
    """By the metadata, which is written last, otherwise by the folder's name and the list beside it."""
    has_our_name = at.path.resolve().name in _FOLDERS
    return METADATA in at.files or (has_our_name and _is_file(list_path))


def _is_file(path: Path) -> bool:
    # os.path, not pathlib, which raises without permission to look.
    return path.is_file() if isinstance(path, RemotePath) else os.path.isfile(path)  # noqa: PTH113


def _open(at: DumpPath, files: list[str], suffix: str, list_path: Path) -> Dump:
    was_finished = METADATA in at.files
    metadata = read_metadata(at.path / METADATA) if was_finished else NO_METADATA
    calls, problems = _read_list(list_path)
    ports, conflicts = _assign_files(files, suffix, (*calls, *metadata.classes), metadata)
    rank = _rank(calls, metadata, suffix, {owner.layer for owner in ports.values()})
    in_order = sorted(ports, key=lambda file: rank.get(_event(ports[file]), len(rank)))
    unlisted = [
        Problem(file, "is of a layer that no list has; it stands last")
        for file in in_order
        if rank and _event(ports[file]) not in rank
    ]
    return Dump(
        path=at.path,
        format="verify-layers",
        entries=tuple(_entry(at.path / file, ports[file], metadata, suffix) for file in in_order),
        ordered=bool(rank),
        problems=(*at.problems, *problems, *metadata.problems, *conflicts, *unlisted),
        interrupted=not was_finished,
        facts={
            "layer_classes": {layer: kind for layer, kind in metadata.classes.items() if kind},
            "injected_layers": metadata.injected,
        },
        files=frozenset(files),
    )


def _read_list(path: Path) -> tuple[list[str], list[Problem]]:
    """The layers as they ran; empty if there is no list."""
    if not os.path.isfile(path):  # noqa: PTH113
        return [], []
    try:
        text = map_file(path)
    except BadFile as error:
        return [], [Problem(path.name, error.problem)]
    if len(text) > _MAX_LIST_BYTES:
        return [], [Problem(path.name, f"is {len(text)} bytes long, too long for a list of layers; ignored")]
    return [line.rstrip("\r") for line in os.fsdecode(text[:]).split("\n") if line.strip()], []


def _rank(calls: list[str], metadata: Metadata, suffix: str, layers: set[str]) -> dict[LayerEvent, int]:
    """The order in which layers that have tensors received inputs and returned outputs."""
    began = [layer for layer in calls if layer in layers]
    ended = [layer for layer in metadata.classes if layer in layers]
    if began and suffix == ".max":
        events = events_of_nested(began, ended)
    else:
        events = events_of_leaves(last_runs(began or ended))
    return {event: index for index, event in enumerate(events)}


def _event(owner: LayerPort) -> LayerEvent:
    return LayerEvent(owner.layer, owner.port.startswith("input"))


def _assign_files(
    files: list[str], suffix: str, layers: Iterable[str], metadata: Metadata
) -> tuple[dict[str, LayerPort], list[Problem]]:
    """The layer and port of each file. Of two files for one port, the one the metadata names is kept."""
    known = {spelling: layer for layer in layers for spelling in (mangle(layer), layer)}
    stems: dict[str, str] = {}
    for file in files:
        stems.setdefault(file[: -len(suffix)], file)
    kept: dict[LayerPort, str] = {}
    problems = [
        Problem(f"{stem:.120}{suffix}", f"is named in {METADATA} but is not here; was it copied?", is_unread=True)
        for stem in metadata.ports
        if stem not in stems
    ]
    problems += [
        Problem(file, f"is left out: {first} has the same name", is_unread=True)
        for file in files
        if (first := stems[file[: -len(suffix)]]) != file
    ]
    for stem in sorted(stems, key=lambda stem: stem not in metadata.ports):
        owner = metadata.ports.get(stem) or _guess(stem, known)
        if kept.setdefault(owner, stem) != stem:
            why = f"is left out: {kept[owner]} is the same tensor, from another run"
            # Which of the two belongs to this run is known only if the metadata names one.
            problems.append(Problem(stems[stem], why, is_unread=kept[owner] not in metadata.ports))
    ports = {stem: owner for owner, stem in kept.items()}
    return {file: ports[stem] for stem, file in stems.items() if stem in ports}, problems


def _guess(stem: str, known: dict[str, str]) -> LayerPort:
    """Layer and port from a file's name alone: the longest known layer it begins with, else by parsing the name."""
    for cut in reversed([found.start() for found in _CUT.finditer(stem)]):
        layer = known.get(stem[:cut])
        if layer is not None and (port := port_of(stem, layer)):
            return LayerPort(layer, port)
    return LayerPort(*parse_name(stem)[:2])


def _entry(path: Path, owner: LayerPort, metadata: Metadata, suffix: str) -> Entry:
    stored: StoredTensor = MaxFile(path) if suffix == ".max" else TorchFile(str(path.parent), path.name)
    origin = Origin(module_class=metadata.classes.get(owner.layer))
    return Entry(path.name[: -len(suffix)], *owner, call=1, step=0, stored=stored, origin=origin)
