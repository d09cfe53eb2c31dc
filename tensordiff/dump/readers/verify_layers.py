"""What MAX's ``verify_layers`` tool says of the tensors it left: ``layer_metadata.json``.

It names each layer, its class, and for every input and output the file and the port. Paths in it
are those of the machine that wrote it, so only a file's own name is used, and only to be looked up
among the files that are there. Where it is damaged or silent, the files' names say most of it.

When the layers of a ``verify_layers`` run began and ended, as far as its lists tell.

Torch noted leaf layers as they ended; a leaf's inputs come right before its outputs. MAX noted all
layers as they began, and its metadata has them as they ended: with both, a layer's inputs stand
where it began and its outputs where it ended, after all that ran within it. A layer that ran more
than once overwrote its tensors, so only its last run counts.

Reading what MAX's ``verify_layers`` tool left: ``torch_layers/`` or ``max_layers/``.

Each is a folder of one tensor a file, ``{layer}_input_{i}`` and ``{layer}_output[_{i}]``, beside
``layer_metadata.json``; in the parent lies ``module_names_torch.txt`` or ``module_names_max.txt``,
the layers as they ran. Order comes from there, else from the metadata, where layers stand as they
completed; both make the dump ``ordered``. Whose tensor a file holds is read from the metadata; a
file's name is parsed only where that is silent, for a layer may itself be called ``a_input_b``.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tensordiff.dump.detect import DumpPath
from tensordiff.dump.files import map_file, parse_json
from tensordiff.dump.model import Dump, Entry, Origin, Problem, StoredTensor
from tensordiff.dump.names import parse_name
from tensordiff.dump.readers.max import MaxFile
from tensordiff.dump.readers.torch.reader import TorchFile
from tensordiff.errors import BadFile, NotADump, printable

METADATA = "layer_metadata.json"
_MAX_BYTES = 1 << 28
_PORT = re.compile(r"(?:input|output)(?:_|$)")
_INJECTED = "_injected"
_MANGLED = str.maketrans(dict.fromkeys('\\/:?"<>| ', "_"))  # as MAX makes a file's name of a label


class LayerPort(NamedTuple):
    """Whose tensor a file holds."""

    layer: str
    port: str


class Metadata(NamedTuple):
    """All that the file says. ``places`` goes by stems of files, ``classes`` in order of completion."""

    places: dict[str, LayerPort]
    classes: dict[str, str | None]
    injected: list[str]
    problems: list[Problem]


NO_METADATA = Metadata({}, {}, [], [])


def mangle(label: str) -> str:
    """The stem of the file that a label was written to."""
    return label.translate(_MANGLED)


def read_metadata(path: Path) -> Metadata:
    """Read what is said of the layers; what cannot be read is a problem and no more."""
    try:
        layers = _load(path)
    except BadFile as error:
        return NO_METADATA._replace(problems=[Problem(METADATA, error.problem)])
    places = {stem: place for name, about in layers.items() for stem, place in _places(name, about)}
    classes = {name: _text(about.get("layer_type")) for name, about in layers.items()}
    injected = [name for name, about in layers.items() if about.get("input_injection_used") is True]
    return Metadata(places, classes, injected, [])


def _load(path: Path) -> dict[str, dict[str, object]]:
    text = map_file(path)
    if len(text) > _MAX_BYTES:
        raise BadFile(path, f"is {len(text)} bytes long, too many for layers; file names must do")
    layers = parse_json(text[:], path, "it")
    if not isinstance(layers, dict) or not all(isinstance(about, dict) for about in layers.values()):
        raise BadFile(path, "is not an object of layers; file names must do")
    return layers


def _places(layer: str, about: dict[str, object]) -> Iterator[tuple[str, LayerPort]]:
    for kind in ("input", "output"):
        rows = about.get(f"{kind}s")
        for row in rows if isinstance(rows, list) else ():
            stem = _stem(row) if isinstance(row, dict) else None
            # The tool made the file's name of layer and port; where that is not so, the row is damaged.
            if stem and (port := port_of(stem, layer)) and port.startswith(kind):
                yield stem, LayerPort(layer, port)


def port_of(stem: str, layer: str) -> str | None:
    """What a file's name says after a layer's, if it begins with it."""
    for spelling in (layer, mangle(layer)):
        rest = stem.removeprefix(f"{spelling}_")
        if rest != stem and _PORT.match(rest):
            return rest.removesuffix(_INJECTED)
    return None


def _stem(row: dict[str, object]) -> str | None:
    """Torch's rows give a file's path; MAX's give a label, under ``name`` unless that is an argument's."""
    if file := _text(row.get("file")):
        return re.split(r"[\\/]", file)[-1].removesuffix(".pt").removesuffix(".max")
    label = _text(row.get("file_name")) or _text(row.get("name"))
    return label and mangle(label)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


class LayerEvent(NamedTuple):
    """A layer being given its inputs, or giving its outputs."""

    layer: str
    is_input: bool


def moments_of_leaves(layers: Iterable[str]) -> list[LayerEvent]:
    """Each layer in turn, begun and ended."""
    return [LayerEvent(layer, is_input) for layer in layers for is_input in (True, False)]


def moments_of_nested(began: list[str], ended: Iterable[str]) -> list[LayerEvent]:
    """What was noted as it began and what as it ended, put together as calls within calls."""
    counts = Counter(began)
    # A layer in only one of the lists, or run twice, cannot be followed: it is taken for a leaf.
    ends = [layer for layer in ended if counts[layer] == 1]
    return list(_nest(last_runs(began), ends))


def last_runs(layers: list[str]) -> list[str]:
    """Each layer once, where it stands last."""
    return list(dict.fromkeys(reversed(layers)))[::-1]


def _nest(began: list[str], ends: list[str]) -> Iterator[LayerEvent]:
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
    # Lists that contradict each other leave layers open; those within still end before those around.
    yield from (LayerEvent(layer, False) for layer in reversed(still_open))


_FOLDERS = ("torch_layers", "max_layers")
_LISTS = {".pt": "module_names_torch.txt", ".max": "module_names_max.txt"}
_MAX_LIST_BYTES = 1 << 26
_CUT = re.compile(r"_(?=(?:input|output)(?:_|$))")


def look(found: DumpPath) -> Dump | None:
    """Open one side of a ``verify_layers`` run."""
    if not found.is_folder:
        return None
    files, suffix = found.named(".max"), ".max"
    if not files:
        files, suffix = found.named(".pt"), ".pt"
    _refuse_both(found.path)
    list_path = found.path.resolve().parent / _LISTS[suffix]
    return _open(found, files, suffix, list_path) if files and _is_ours(found, list_path) else None


def _refuse_both(path: Path) -> None:
    # os.path, not pathlib, which raises where we may not look.
    if all(os.path.isdir(path / name) for name in _FOLDERS):  # noqa: PTH112
        raise NotADump(
            f"{printable(path)}: holds two dumps, {_FOLDERS[0]} and {_FOLDERS[1]}; name one of them, "
            f"for example {printable(path / _FOLDERS[0])}"
        )


def _is_ours(found: DumpPath, list_path: Path) -> bool:
    """The metadata is written last: where the run was stopped, its folder's name and list must do."""
    is_named_so = found.path.resolve().name in _FOLDERS
    return METADATA in found.files or (is_named_so and os.path.isfile(list_path))  # noqa: PTH113


def _open(found: DumpPath, files: list[str], suffix: str, list_path: Path) -> Dump:
    was_finished = METADATA in found.files
    metadata = read_metadata(found.path / METADATA) if was_finished else NO_METADATA
    calls, problems = _read_list(list_path)
    places, doubts = _place(files, suffix, (*calls, *metadata.classes), metadata)
    rank = _rank(calls, metadata, suffix, {place.layer for place in places.values()})
    in_order = sorted(places, key=lambda file: rank.get(_moment(places[file]), len(rank)))
    late = [
        Problem(file, "is of a layer that no list has; it stands last")
        for file in in_order
        if rank and _moment(places[file]) not in rank
    ]
    return Dump(
        path=found.path,
        format="verify-layers",
        entries=tuple(_entry(found.path / file, places[file], metadata, suffix) for file in in_order),
        ordered=bool(rank),
        problems=(*found.problems, *problems, *metadata.problems, *doubts, *late),
        interrupted=not was_finished,
        facts={
            "layer_classes": {layer: kind for layer, kind in metadata.classes.items() if kind},
            "injected_layers": metadata.injected,
        },
    )


def _read_list(path: Path) -> tuple[list[str], list[Problem]]:
    """The layers as they ran; none where there is no list."""
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
    """When each layer that has tensors was given its inputs and gave its outputs."""
    began = [layer for layer in calls if layer in layers]
    ended = [layer for layer in metadata.classes if layer in layers]
    if began and suffix == ".max":
        moments = moments_of_nested(began, ended)
    else:
        moments = moments_of_leaves(last_runs(began or ended))
    return {moment: index for index, moment in enumerate(moments)}


def _moment(place: LayerPort) -> LayerEvent:
    return LayerEvent(place.layer, place.port.startswith("input"))


def _place(
    files: list[str], suffix: str, layers: Iterable[str], metadata: Metadata
) -> tuple[dict[str, LayerPort], list[Problem]]:
    """Whose tensor each file holds. Of two that hold the same, the one the metadata names is kept."""
    known = {spelling: layer for layer in layers for spelling in (mangle(layer), layer)}
    stems = {file[: -len(suffix)]: file for file in files}
    kept: dict[LayerPort, str] = {}
    problems = [
        Problem(f"{stem:.120}{suffix}", f"is named in {METADATA} but is not here; was it copied?", is_unread=True)
        for stem in metadata.places
        if stem not in stems
    ]
    for stem in sorted(stems, key=lambda stem: stem not in metadata.places):
        place = metadata.places.get(stem) or _guess(stem, known)
        if kept.setdefault(place, stem) != stem:
            why = f"is left out: {kept[place]} is the same tensor, from another run"
            problems.append(Problem(stems[stem], why))
    places = {stem: place for place, stem in kept.items()}
    return {file: places[stem] for stem, file in stems.items() if stem in places}, problems


def _guess(stem: str, known: dict[str, str]) -> LayerPort:
    """From a file's name alone: the longest layer we know of, else what the name looks like."""
    for cut in reversed([found.start() for found in _CUT.finditer(stem)]):
        layer = known.get(stem[:cut])
        if layer is not None and (port := port_of(stem, layer)):
            return LayerPort(layer, port)
    return LayerPort(*parse_name(stem)[:2])


def _entry(path: Path, place: LayerPort, metadata: Metadata, suffix: str) -> Entry:
    stored: StoredTensor = MaxFile(path) if suffix == ".max" else TorchFile(str(path.parent), path.name)
    origin = Origin(module_class=metadata.classes.get(place.layer))
    return Entry(path.name[: -len(suffix)], *place, call=1, step=0, stored=stored, origin=origin)
