"""What MAX's ``verify_layers`` tool says of the tensors it left: ``layer_metadata.json``.

It names each layer, its class, and for every input and output the file and the port. Paths in it
are those of the machine that wrote it, so only a file's own name is used, and only to be looked up
among the files that are there. Where it is damaged or silent, the files' names say most of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tensordiff.dump.files import map_file
from tensordiff.dump.model import Problem
from tensordiff.dump.strict_json import parse_json
from tensordiff.errors import BadFile

METADATA = "layer_metadata.json"
_MAX_BYTES = 1 << 28
_PORT = re.compile(r"(?:input|output)(?:_|$)")
_INJECTED = "_injected"
_MANGLED = str.maketrans(dict.fromkeys('\\/:?"<>| ', "_"))  # as MAX makes a file's name of a label


class Place(NamedTuple):
    """Whose tensor a file holds."""

    layer: str
    port: str


class Metadata(NamedTuple):
    """All that the file says. ``places`` goes by stems of files, ``classes`` in order of completion."""

    places: dict[str, Place]
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


def _places(layer: str, about: dict[str, object]) -> Iterator[tuple[str, Place]]:
    for kind in ("input", "output"):
        rows = about.get(f"{kind}s")
        for row in rows if isinstance(rows, list) else ():
            stem = _stem(row) if isinstance(row, dict) else None
            # The tool made the file's name of layer and port; where that is not so, the row is damaged.
            if stem and (port := port_of(stem, layer)) and port.startswith(kind):
                yield stem, Place(layer, port)


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
