"""transformers' ``model_addition_debugger``: a tree in JSON, and a safetensors file for each tensor.

``<Class>_debug_tree_FULL_TENSORS.json`` lists modules as they ran, depth first; the file of a tensor is called
``<Class>.<path>_inputs_args_0``, ``_inputs_kwargs_<name>``, ``_outputs``. By default the tool leaves middle layers out
of its JSON, but not out of the folder: those are ordered by their numbers. With ``use_repr=True``, and in
``…_SUMMARY.json``, there are no values: such a dump holds statistics.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tensordiff.dump.dtypes import DTYPES
from tensordiff.dump.files import map_file, parse_json
from tensordiff.dump.folders import DumpPath
from tensordiff.dump.model import Dump, Entry, Origin, Problem
from tensordiff.dump.readers import Format
from tensordiff.dump.readers.safetensors import SUFFIX, open_file
from tensordiff.dump.statistics import StatisticsTensor
from tensordiff.errors import BadFile

FORMAT = "transformers-debugger"
FORMATS = (
    Format(
        FORMAT,
        "transformers' `model_addition_debugger`: a tree in JSON, one file per tensor; its SUMMARY as statistics",
        "`*_debug_tree_FULL_TENSORS.json` or `*_debug_tree_SUMMARY.json`",
        "the tree in the JSON; where layers are left out of it, their numbers",
    ),
)

_FULL, _SUMMARY = "_debug_tree_FULL_TENSORS.json", "_debug_tree_SUMMARY.json"
_FILE = re.compile(r"^(.*)_(inputs_args|inputs_kwargs|outputs)(?:_(.+))?$", re.DOTALL)
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_SCALAR = re.compile(r"tensor\((-?(?:inf|nan|[\d.]+(?:e[+-]?\d+)?))", re.IGNORECASE)
_NAMES = ("mean", "std", "min", "max")
_MOST_DEPTH = 200
_HALF = 6e4


class Port(NamedTuple):
    """A module and one of its inputs or outputs."""

    module: str
    port: str


class Node(NamedTuple):
    """A tensor as the tree lists it."""

    at: Port
    about: dict[str, object]


def try_open(at: DumpPath) -> Dump | None:
    """Open a folder that the debugger wrote, or one of its JSON files."""
    if not at.is_folder:
        return _open(at, at.path.name, {}) if at.path.name.endswith((_FULL, _SUMMARY)) else None
    trees = at.with_suffix(_FULL.lower()) or at.with_suffix(_SUMMARY.lower())
    if not trees:
        return None
    if len(trees) > 1:
        names = ", ".join(trees[:3])
        raise BadFile(at.path, f"holds the trees of {len(trees)} models ({names}); put each into a folder of its own")
    return _open(at, trees[0], {name[: -len(SUFFIX)]: name for name in at.with_suffix(SUFFIX)})


def _open(at: DumpPath, tree: str, files: dict[str, str]) -> Dump:
    path = at.folder / tree
    root = parse_json(map_file(path)[:], path, "it")
    if not isinstance(root, dict) or not isinstance(root.get("module_path"), str):
        raise BadFile(path, "is no tree of modules as transformers' debugger writes it")
    nodes = list(_nodes(root, 0))
    taken = frozenset((tree, *files.values(), *at.with_suffix(_SUMMARY.lower())))
    if not files:
        return _statistics(at, root["module_path"], nodes, taken)
    class_name = root["module_path"]
    entries, problems = _entries(at, class_name, files)
    problems += _repeated(nodes, tree)
    ordered = sorted(entries, key=_Order(nodes, class_name).key)
    return Dump(at.path, FORMAT, tuple(ordered), True, (*at.problems, *problems), files=taken)


def _nodes(node: object, depth: int) -> Iterator[Node]:
    """Every tensor in order of appearance: inputs of a module, tensors of its children, outputs."""
    if not isinstance(node, dict) or not isinstance(module := node.get("module_path"), str) or depth > _MOST_DEPTH:
        return
    inputs = node.get("inputs")
    if isinstance(inputs, dict):
        for place, value in _leaves(inputs.get("args"), ""):
            yield Node(Port(module, f"input{place}"), value)
        for place, value in _leaves(inputs.get("kwargs"), ""):
            yield Node(Port(module, f"input{place}"), value)
    children = node.get("children")
    for child in children if isinstance(children, list) else ():
        yield from _nodes(child, depth + 1)
    for place, value in _leaves(node.get("outputs"), ""):
        yield Node(Port(module, f"output{place}"), value)


def _leaves(value: object, place: str) -> Iterator[tuple[str, dict[str, object]]]:
    if isinstance(value, dict) and isinstance(value.get("shape"), str):
        yield place, value
    elif isinstance(value, dict | list) and place.count("_") < _MOST_DEPTH:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, below in items:
            yield from _leaves(below, f"{place}_{key}")


def _entries(at: DumpPath, class_name: str, files: dict[str, str]) -> tuple[list[Entry], list[Problem]]:
    entries: list[Entry] = []
    problems: list[Problem] = []
    for stem, file in files.items():
        try:
            (only,) = open_file(at.path / file).entries
        except BadFile as error:
            problems.append(Problem(file, error.problem, is_unread=True))
            continue
        except ValueError:
            problems.append(Problem(file, "holds other than one tensor, so the debugger did not write it", True))
            continue
        place = port_of(stem)
        if place is None:
            problems.append(Problem(file, "is not named as the debugger names its files; it is left out", True))
            continue
        entries.append(Entry(stem, layer_of(place.module, class_name), place.port, 1, 0, only.stored, Origin()))
    return entries, problems


def port_of(stem: str) -> Port | None:
    """Module and port from the name of a file."""
    match = _FILE.match(stem)
    if match is None:
        return None
    module, kind, rest = match[1], "output" if match[2] == "outputs" else "input", match[3]
    return Port(module, f"{kind}_{rest}" if rest else kind)


def layer_of(module: str, class_name: str) -> str:
    """A module's path in the model, as in our own captures: the class is the model."""
    return f"model{module[len(class_name) :]}" if module.startswith(class_name) else module


def _repeated(nodes: list[Node], tree: str) -> list[Problem]:
    counts = Counter(node.at for node in nodes)
    repeated = [place for place, count in counts.items() if count > 1]
    if not repeated:
        return []
    first = repeated[0].module
    why = f"lists {len(repeated)} tensors more than once (the first: {first}): only the last run is in a file"
    return [Problem(tree, why)]


class _Order:
    """The position of a file's tensor: as listed, or by the number of its layer among its siblings."""

    def __init__(self, nodes: list[Node], class_name: str) -> None:
        self._templates: dict[tuple[str, str], int] = {}
        self._first: dict[str, int] = {}
        for index, node in enumerate(nodes):
            layer = layer_of(node.at.module, class_name)
            self._templates.setdefault((_NUMBER.sub("{i}", layer), node.at.port), index)
            prefix = layer[: m.start()] if (m := _NUMBER.search(layer)) else layer
            self._first.setdefault(prefix, index)
        self._count = len(nodes)

    def key(self, item: Entry) -> tuple[float, int, float, str]:
        template = self._templates.get((_NUMBER.sub("{i}", item.layer), item.port))
        number = _NUMBER.search(item.layer)
        if number is None:
            inside: float = self._count if template is None else template
            is_root = template is None and item.layer == "model"
            return (self._count + 1 if is_root else inside, 0, 0, item.name)
        first = self._first.get(item.layer[: number.start()], self._count)
        # An output that the tree does not list comes after everything inside its module.
        inside = self._after(item.layer) if template is None else template
        return (first, int(number[0]), inside, item.name)

    def _after(self, layer: str) -> float:
        outline = _NUMBER.sub("{i}", layer)
        within = [at for (name, _), at in self._templates.items() if name == outline or name.startswith(f"{outline}.")]
        return max(within, default=self._count) + 0.5


def _statistics(at: DumpPath, class_name: str, nodes: list[Node], taken: frozenset[str]) -> Dump:
    entries = []
    calls: Counter[Port] = Counter()
    for place, about in nodes:
        calls[place] += 1
        values = {name: _number(about.get(name)) for name in _NAMES}
        if any(value is None for value in values.values()):
            continue  # integers have none
        known = {name: value for name, value in values.items() if value is not None}
        is_small = all(abs(value) < _HALF for value in known.values())
        stored = StatisticsTensor(
            known, _NAMES, DTYPES["float16" if is_small else "bfloat16"]
        )  # printed to five digits
        layer = layer_of(place.module, class_name)
        name = f"{place.module}-{place.port}"
        entries.append(Entry(name, layer, place.port, calls[place], 0, stored))
    if not entries:
        raise BadFile(at.path, "holds no statistics of any tensor; run the debugger again with use_repr=False")
    return Dump(at.path, FORMAT, tuple(entries), True, at.problems, statistics=_NAMES, files=taken)


def _number(text: object) -> float | None:
    match = _SCALAR.match(text) if isinstance(text, str) and len(text) < 80 else None
    if match is None:
        return None
    try:
        value = float(match[1])
    except ValueError:
        return None
    return value if np.isfinite(value) else None
