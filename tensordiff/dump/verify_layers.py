"""Reading what MAX's ``verify_layers`` tool left: ``torch_layers/`` or ``max_layers/``.

Each is a folder of one tensor a file, ``{layer}_input_{i}`` and ``{layer}_output[_{i}]``, beside
``layer_metadata.json``; in the parent lies ``module_names_torch.txt`` or ``module_names_max.txt``,
the layers as they ran. Order comes from there, else from the metadata, where layers stand as they
completed; both make the dump ``ordered``. Whose tensor a file holds is read from the metadata; a
file's name is parsed only where that is silent, for a layer may itself be called ``a_input_b``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from tensordiff.dump.detect import Found
from tensordiff.dump.files import map_file
from tensordiff.dump.max_files import MaxFile
from tensordiff.dump.model import Dump, Entry, Origin, Problem, Stored
from tensordiff.dump.names import parse_name
from tensordiff.dump.torch_files import TorchFile
from tensordiff.dump.verify_metadata import (
    METADATA,
    NO_METADATA,
    Metadata,
    Place,
    mangle,
    port_of,
    read_metadata,
)
from tensordiff.dump.verify_order import Moment, last_runs, moments_of_leaves, moments_of_nested
from tensordiff.errors import BadFile, NotADump, printable

_FOLDERS = ("torch_layers", "max_layers")
_LISTS = {".pt": "module_names_torch.txt", ".max": "module_names_max.txt"}
_MAX_LIST_BYTES = 1 << 26
_CUT = re.compile(r"_(?=(?:input|output)(?:_|$))")


def look(found: Found) -> Dump | None:
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


def _is_ours(found: Found, list_path: Path) -> bool:
    """The metadata is written last: where the run was stopped, its folder's name and list must do."""
    is_named_so = found.path.resolve().name in _FOLDERS
    return METADATA in found.files or (is_named_so and os.path.isfile(list_path))  # noqa: PTH113


def _open(found: Found, files: list[str], suffix: str, list_path: Path) -> Dump:
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


def _rank(calls: list[str], metadata: Metadata, suffix: str, layers: set[str]) -> dict[Moment, int]:
    """When each layer that has tensors was given its inputs and gave its outputs."""
    began = [layer for layer in calls if layer in layers]
    ended = [layer for layer in metadata.classes if layer in layers]
    if began and suffix == ".max":
        moments = moments_of_nested(began, ended)
    else:
        moments = moments_of_leaves(last_runs(began or ended))
    return {moment: index for index, moment in enumerate(moments)}


def _moment(place: Place) -> Moment:
    return Moment(place.layer, place.port.startswith("input"))


def _place(
    files: list[str], suffix: str, layers: Iterable[str], metadata: Metadata
) -> tuple[dict[str, Place], list[Problem]]:
    """Whose tensor each file holds. Of two that hold the same, the one the metadata names is kept."""
    known = {spelling: layer for layer in layers for spelling in (mangle(layer), layer)}
    stems = {file[: -len(suffix)]: file for file in files}
    kept: dict[Place, str] = {}
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


def _guess(stem: str, known: dict[str, str]) -> Place:
    """From a file's name alone: the longest layer we know of, else what the name looks like."""
    for cut in reversed([found.start() for found in _CUT.finditer(stem)]):
        layer = known.get(stem[:cut])
        if layer is not None and (port := port_of(stem, layer)):
            return Place(layer, port)
    return Place(*parse_name(stem)[:2])


def _entry(path: Path, place: Place, metadata: Metadata, suffix: str) -> Entry:
    stored: Stored = MaxFile(path) if suffix == ".max" else TorchFile(str(path.parent), path.name)
    origin = Origin(module_class=metadata.classes.get(place.layer))
    return Entry(path.name[: -len(suffix)], *place, call=1, step=0, stored=stored, origin=origin)
