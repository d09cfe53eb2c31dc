"""TensorRT-LLM's debug hook: ``rank0/1.LlamaModel-3.LlamaDecoderLayer-4.LlamaMLP-output.1.pt``.

A file's name is a path of classes, each with its position among its siblings as they ran, counted from 1. Classes are
not part of a layer's name: blocks are numbered in sequence, and modules whose class and position leave no doubt get the
name that Hugging Face gives them. ``output`` repeats the inputs first.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tensordiff.dump.folders import DumpPath, list_below
from tensordiff.dump.leftovers import unread_within
from tensordiff.dump.model import Dump, Entry, Origin, Problem
from tensordiff.dump.names import natural_key
from tensordiff.dump.ranks.joined_tensor import RankPart
from tensordiff.dump.ranks.ranks import join_ranks
from tensordiff.dump.readers import Format
from tensordiff.dump.readers.torch.reader import TorchFile

FORMAT = "tensorrt-llm"
FORMATS = (
    Format(
        FORMAT,
        "TensorRT-LLM's debug hook, of several ranks",
        "files named `1.Class-2.Class-output.1.pt`, in the folder or under `rank*/`",
        "the numbers in the names",
    ),
)

_FILE = re.compile(r"^((?:\d+\.[^-]+-)+)(input|output)\.(.+)\.pt$", re.DOTALL)
_RANK = re.compile(r"rank_?(\d{1,9})")
_BLOCK = re.compile(r"(DecoderLayer|TransformerBlock|Block|EncoderLayer)$")

Path_ = tuple[tuple[int, str], ...]


class _File(NamedTuple):
    file: str
    path: Path_
    kind: str
    argument: str


def try_open(at: DumpPath) -> Dump | None:
    """Open a folder that the hook wrote, or one that holds a folder for each rank."""
    folders = _rank_folders(at) if at.is_folder else {}
    if not folders:
        return None
    parts: list[RankPart] = []
    problems: list[Problem] = list(at.problems)
    for rank, (folder, names) in folders.items():
        entries, found = _open_rank(folder, names)
        parts += (RankPart(rank, entry) for entry in entries)
        problems += found
    joined = join_ranks(parts)
    used = [folder / name for folder, names in folders.values() for name in names if name.endswith(".pt")]
    taken = {path.relative_to(at.path).parts[0] for path in used}
    taken |= {name for name in at.folders if _RANK.fullmatch(name) and folders.keys() - {-1}}
    problems += unread_within(at, taken, used)
    return Dump(at.path, FORMAT, joined.entries, True, (*problems, *joined.problems), files=frozenset(taken))


def _rank_folders(at: DumpPath) -> dict[int, tuple[Path, list[str]]]:
    if any(map(_FILE.match, at.files[:50])):
        return {-1: (at.path, at.files)}
    folders = {}
    for name in at.folders:
        match = _RANK.fullmatch(name)
        files = list_below(at.path / name).files if match else []
        if match and any(map(_FILE.match, files[:50])):
            folders[int(match[1])] = (at.path / name, files)
    return folders


def _open_rank(folder: Path, names: list[str]) -> tuple[list[Entry], list[Problem]]:
    files = [parsed for name in names if (parsed := _parse(name))]
    used = {file.file for file in files}
    problems = [
        Problem(name, "is not named as the hook names its files; it is left out", is_unread=True)
        for name in names
        if name not in used and name.endswith(".pt")
    ]
    layers = _Layers({file.path for file in files})
    by_module: dict[Path_, list[_File]] = defaultdict(list)
    for file in files:
        by_module[file.path].append(file)
    keyed = [(key, item) for path, group in by_module.items() for key, item in _ports(folder, path, group, layers)]
    keyed.sort(key=lambda pair: pair[0])
    return [item for _, item in keyed], problems


def _parse(name: str) -> _File | None:
    match = _FILE.match(name)
    if match is None:
        return None
    parts = (part.split(".", 1) for part in match[1][:-1].split("-"))
    return _File(name, tuple((int(number), kind) for number, kind in parts), match[2], match[3])


def _ports(
    folder: Path, path: Path_, group: list[_File], layers: _Layers
) -> Iterator[tuple[tuple[object, ...], Entry]]:
    inputs = [file for file in group if file.kind == "input"]
    input_names = {file.argument for file in inputs}
    outputs = [f for f in group if f.kind == "output" and f.argument not in input_names]
    outputs.sort(key=lambda f: (f.argument != "hidden_states", natural_key(f.argument)))
    numbers = [number for number, _ in path]
    layer, module_class = layers.name(path), path[-1][1]

    def made(file: _File, port: str) -> Entry:
        stored = TorchFile(str(folder), file.file)
        return Entry(file.file[: -len(".pt")], layer, port, 1, 0, stored, Origin(module_class))

    for i, file in enumerate(sorted(inputs, key=lambda f: natural_key(f.argument))):
        port = f"input_{i}" if file.argument.isdecimal() or len(inputs) == 1 else f"input_{file.argument}"
        yield (*numbers, 0, 0, i), made(file, port)
    for i, file in enumerate(f for f in group if f.kind == "output" and f.argument in input_names):
        yield (*numbers, float("inf"), -1, i), made(file, f"input_after_{file.argument}")  # the inputs, repeated
    for i, file in enumerate(outputs):
        yield (*numbers, float("inf"), 0, i), made(file, "output" if len(outputs) == 1 else f"output_{i}")


class _Layers:
    """Names of layers from classes and positions."""

    def __init__(self, paths: set[Path_]) -> None:
        self._children: dict[Path_, set[tuple[int, str]]] = defaultdict(set)
        for path in paths:
            for depth in range(len(path)):
                self._children[path[:depth]].add(path[depth])

    def name(self, path: Path_) -> str:
        """The layer at a path."""
        return ".".join(self._part(path[:depth], path[depth]) for depth in range(len(path)))

    def _part(self, parent: Path_, child: tuple[int, str]) -> str:
        siblings = sorted(self._children[parent])
        number, kind = child
        blocks = [one for one in siblings if _BLOCK.search(one[1])]
        if child in blocks:
            return f"layers.{blocks.index(child)}"
        kinds = [name for _, name in siblings]
        if not parent and len(siblings) == 2 and kinds[1].endswith(("Linear", "Head")):
            return "model" if child == siblings[0] else "lm_head"
        if blocks:
            after = [one for one in siblings if "Norm" in one[1] and one > blocks[-1]]
            if "Embedding" in kind and "Rotary" not in kind and number == 1:
                return "embed_tokens"
            if [child] == after:
                return "norm"
            return "rotary_emb" if "Rotary" in kind and sum("Rotary" in k for k in kinds) == 1 else str(number)
        return self._in_block(parent, child, siblings)

    def _in_block(self, parent: Path_, child: tuple[int, str], siblings: list[tuple[int, str]]) -> str:
        number, kind = child
        inside, kinds = parent[-1][1] if parent else "", [name for _, name in siblings]
        norms = [one for one in siblings if "Norm" in one[1]]
        if _BLOCK.search(inside):
            if child in norms and len(norms) == 2:
                return ("input_layernorm", "post_attention_layernorm")[norms.index(child)]
            for word, name in (("Attention", "self_attn"), ("MLP", "mlp")):
                if word in kind and sum(word in k for k in kinds) == 1:
                    return name
        if "Attention" in inside and kinds == ["Linear"] * 4:
            return ("q_proj", "k_proj", "v_proj", "o_proj")[siblings.index(child)]
        is_gated = len(kinds) == 4 and kinds[1] != "Linear" and [kinds[0], *kinds[2:]] == ["Linear"] * 3
        if "MLP" in inside and is_gated:
            return ("gate_proj", "act_fn", "up_proj", "down_proj")[siblings.index(child)]
        return str(number)
