"""vLLM: the hidden states of a request in a safetensors file, and the tensors of its intermediates logger.

A request's file holds ``hidden_states`` (tokens, layers, hidden) and ``token_ids``: each layer becomes an entry. The
logger writes ``step_0/<module>[_<call>]/inputs_0_<device>.pt`` and ``outputs[_i]_<device>.pt``; its
``module_calls.txt`` lists modules as they began.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tensordiff.dump.dtypes import Array
from tensordiff.dump.files import map_file, open_buffer
from tensordiff.dump.folders import DumpPath, list_below
from tensordiff.dump.leftovers import is_named_as_tensors, unread_within
from tensordiff.dump.model import Dump, Entry, Problem, Spec, StoredTensor, entry
from tensordiff.dump.readers import Format
from tensordiff.dump.readers.safetensors import SUFFIX, open_file, read_header
from tensordiff.dump.readers.torch.reader import TorchFile
from tensordiff.errors import BadFile

FORMAT = "vllm"
FORMATS = (
    Format(
        FORMAT,
        "vLLM's hidden states of a request, and its intermediates logger",
        "safetensors of `hidden_states` and `token_ids` alone; `step_*/<module>/outputs*.pt`",
        "the layers' own; `module_calls.txt`",
    ),
)

CALLS = "module_calls.txt"
_STEP = re.compile(r"^step_(\d{1,9})$")
_FILE = re.compile(
    r"^(inputs|outputs)(?:_(.+?))?_(cpu|cuda[^_]*|xpu[^_]*|npu[^_]*|hpu[^_]*|tpu[^_]*|mps)(?:_\d+)?\.pt$"
)
_LONGEST_HEADER = 1024
_KEYS = {"hidden_states", "token_ids"}


class LayerSlice(NamedTuple):
    """One layer of a tensor (tokens, layers, hidden)."""

    whole: StoredTensor
    layer: int

    @property
    def spec(self) -> Spec:
        """The spec of the slice."""
        tokens, _, hidden = self.whole.spec.shape
        return Spec((tokens, hidden), self.whole.spec.dtype)

    def read(self) -> Array:
        """The values, mapped with strides."""
        return self.whole.read()[:, self.layer]


def try_open(at: DumpPath) -> Dump | None:
    """Open hidden states, one file or a folder of them, or a folder of the logger."""
    if not at.is_folder:
        is_ours = at.path.name.lower().endswith(SUFFIX) and _has_short_header(at.head)
        return _open_hidden(at, [at.path.name]) if is_ours else None
    if files := at.with_suffix(SUFFIX):
        return _open_hidden(at, files) if _has_short_header(open_buffer(at.path / files[0])[:8]) else None
    if CALLS in at.files:
        return _open_logger(at, [(0, at.path, frozenset(at.folders))])
    steps = [(int(m[1]), at.path / n, frozenset((n,))) for n in at.folders if (m := _STEP.match(n))]
    logged = [step for step in steps if CALLS in list_below(step[1]).files]
    return _open_logger(at, logged) if logged else None


def _has_short_header(head: bytes) -> bool:
    """Whether a header is no longer than two tensors need."""
    return int.from_bytes(head[:8], "little") <= _LONGEST_HEADER


def _open_hidden(at: DumpPath, files: list[str]) -> Dump | None:
    try:
        if {row.name for row in read_header(at.folder / files[0]).rows} != _KEYS:
            return None
    except BadFile:
        return None  # the safetensors reader reports what is wrong
    entries: list[Entry] = []
    problems: list[Problem] = list(at.problems)
    for step, file in enumerate(files):
        try:
            items = {item.name: item for item in open_file(at.folder / file).entries}
        except BadFile as error:
            problems.append(Problem(file, error.problem, is_unread=True))
            continue
        hidden = items.get("hidden_states")
        if items.keys() != _KEYS or hidden is None or len(hidden.spec.shape) != 3:
            problems.append(Problem(file, "does not hold hidden_states of three axes, as the others do", True))
            continue
        entries.append(items["token_ids"]._replace(step=step))
        layers = range(hidden.spec.shape[1])
        entries += (entry(f"hidden_states.{i}", LayerSlice(hidden.stored, i), step) for i in layers)
    if not entries:
        raise BadFile(at.path, problems[-1].sentence)
    return Dump(at.path, FORMAT, tuple(entries), True, tuple(problems), files=frozenset(files))


def _open_logger(at: DumpPath, steps: list[tuple[int, Path, frozenset[str]]]) -> Dump | None:
    entries: list[Entry] = []
    problems: list[Problem] = list(at.problems)
    first = min(number for number, _, _ in steps)
    for number, folder, _ in steps:
        made, found = _open_step(folder, number - first)
        entries += made
        problems += (p._replace(file=os.path.join(folder.relative_to(at.path), p.file)) for p in found)  # noqa: PTH118
    if not entries:
        return None  # a list of modules from another tool
    problems += _missing(at, [folder for _, folder, _ in steps])
    taken = frozenset(name for _, _, names in steps for name in names)
    reported = {problem.file for problem in problems}
    used = [folder / name / file for _, folder, _ in steps for name in list_below(folder).folders
            for file in list_below(folder / name).files if _FILE.match(file)]  # fmt: skip
    problems += (problem for problem in unread_within(at, taken, used) if problem.file not in reported)
    return Dump(at.path, FORMAT, tuple(entries), True, tuple(problems), files=taken)


def _missing(at: DumpPath, steps: list[Path]) -> Iterator[Problem]:
    """Report modules that were called in a step and have files in another step but not in this one."""
    folders = [set(list_below(step).folders) for step in steps]
    everywhere = set[str]().union(*folders)
    for step, here in zip(steps, folders, strict=True):
        for module in (name for name in dict.fromkeys(_module_calls(step)) if name in everywhere - here):
            where = str((step / module).relative_to(at.path))
            yield Problem(where, f"is listed in {CALLS} and not there, as in other steps; was it copied?", True)


def _module_calls(folder: Path) -> list[str]:
    """The modules of a step, in the order they began."""
    return [line.strip() for line in os.fsdecode(bytes(map_file(folder / CALLS)[:])).split("\n") if line.strip()]


def _open_step(folder: Path, step: int) -> tuple[list[Entry], list[Problem]]:
    """The entries of a step; a module's outputs come after those of all modules inside it."""
    began = _module_calls(folder)
    problems: list[Problem] = []
    ports: dict[str, list[Entry]] = defaultdict(list)
    listing = list_below(folder)
    known = set(began)
    for name in listing.folders:
        module, call = _module(name, known)
        for file in list_below(folder / name).files:
            match = _FILE.match(file)
            if match is None:
                problems += [
                    Problem(f"{name}/{file}", "is not named as the logger names files", is_named_as_tensors(file))
                ]
                continue
            kind = "input" if match[1] == "inputs" else "output"
            port = f"{kind}_{match[2]}" if match[2] else kind
            stored = TorchFile(str(folder / name), file)
            ports[name].append(Entry(f"{name}-{port}", module, port, call, step, stored))
    order: list[Entry] = []
    waiting: list[str] = []
    seen: Counter[str] = Counter()
    for module in [*began, ""]:
        while waiting and not _is_within(module, _module(waiting[-1], known)[0]):
            order += (item for item in ports.pop(waiting.pop(), ()) if not item.is_input)
        seen[module] += 1
        name = module if seen[module] == 1 else f"{module}_{seen[module] - 1}"
        order += (item for item in ports.get(name, ()) if item.is_input)
        waiting.append(name)
    rest = [item for items in ports.values() for item in items]
    problems += (Problem(item.name, f"is of a module that {CALLS} does not list; it stands last") for item in rest)
    return [*order, *rest], [*listing.problems, *problems]


def _is_within(module: str, outer: str) -> bool:
    return module.startswith(f"{outer}.")


def _module(folder: str, known: set[str]) -> tuple[str, int]:
    """A module and its call from the name of a folder."""
    stem, _, number = folder.rpartition("_")
    if folder not in known and stem in known and number.isdecimal():
        return stem, int(number) + 1
    return folder, 1
