"""Polygraphy's RunResults: JSON with arrays as base64 of ``.npy``. Iterations are steps.

The order is the runner's own. Several runners may share one file: ``outputs.json::trt`` selects the one whose name
begins so. Inputs, which ``--save-inputs`` writes to a file of their own, are read from the same folder.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from tensordiff.dump.dtypes import Array
from tensordiff.dump.files import map_file, open_buffer, parse_json
from tensordiff.dump.folders import DumpPath
from tensordiff.dump.model import Dump, Entry, MemoryTensor, Problem, Spec, entry
from tensordiff.dump.readers import Format
from tensordiff.dump.readers.npy import MAX_HEADER_BYTES, NpyHeader, only_array, parse_header
from tensordiff.dump.readers.torch.archive import open_archive_bytes
from tensordiff.dump.readers.torch.reader import tensor_of
from tensordiff.dump.zip_files import MEMBER_MAGIC
from tensordiff.errors import BadFile, printable

FORMAT = "polygraphy"
FORMATS = (
    Format(
        FORMAT,
        "Polygraphy's RunResults and saved inputs; of several runners in one file, `FILE::runner` means one",
        'JSON that says `"polygraphy_class"`, one file or a folder of them',
        "the runner's",
    ),
)

_MARK = b'"polygraphy_class"'
_LOOKED_AT = 4096


@dataclass(frozen=True)
class EncodedArray:
    """An array within JSON: base64, or latin-1 as older versions wrote it, of a ``.npy``, ``.npz`` or torch file."""

    path: Path
    name: str
    text: str

    @cached_property
    def spec(self) -> Spec:
        """Shape and dtype; for a ``.npy``, from the first characters."""
        head = self._decode(self.text[: 4 * (MAX_HEADER_BYTES // 3)])
        return self._header(head).spec if head[:4] != MEMBER_MAGIC else self._stored(self._decode(self.text)).spec

    def read(self) -> Array:
        """The values, decoded."""
        data = self._decode(self.text)
        if data[:4] == MEMBER_MAGIC:
            return self._stored(data).read()
        header = self._header(data[:MAX_HEADER_BYTES])
        if len(data) != header.total_bytes:
            raise BadFile(self.path, f"its array {self.name!r:.120} is truncated or its header lies; save it again")
        return header.as_array(np.frombuffer(data, np.uint8, offset=header.data_start))

    def _header(self, data: bytes) -> NpyHeader:
        return parse_header(data, self.path, f"its array {self.name!r:.120}")

    def _stored(self, data: bytes) -> MemoryTensor:
        """The only array of an archive: ``np.savez`` or ``torch.save``."""
        if b"data.pkl" in data[:_LOOKED_AT]:
            return MemoryTensor(tensor_of(open_archive_bytes(self.path, data), self.name))
        return MemoryTensor(only_array(data, self.path, f"its array {self.name!r:.120}"))

    def _decode(self, text: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            try:
                return text.encode("latin-1")
            except UnicodeError as error:
                raise BadFile(self.path, f"its array {self.name!r:.120} is no base64; save it again") from error


def try_open(at: DumpPath) -> Dump | None:
    """Open a file of RunResults, or a folder that holds some."""
    files = at.with_suffix(".json") if at.is_folder else [at.path.name]
    ours = [file for file in files if file.lower().endswith(".json") and _is_ours(at.folder / file)]
    if not ours:
        return None
    contents = {file: parse_json(map_file(at.folder / file)[:], at.folder / file, "it") for file in ours}
    runner = _runner(at, [name for content in contents.values() for name, _ in _runs(content)])
    entries: list[Entry] = []
    problems: list[Problem] = list(at.problems)
    seen: set[tuple[str, int]] = set()
    for file in sorted(ours, key=lambda file: bool(_runs(contents[file]))):  # inputs first
        for item in _entries(at.folder / file, contents[file], runner):
            if (item.name, item.step) in seen:
                problems.append(Problem(file, f"has {item.name!r:.120}, which another file has too", is_unread=True))
            else:
                seen.add((item.name, item.step))
                entries.append(item)
    if not entries:
        raise BadFile(at.path, "holds no arrays; save the outputs again with Polygraphy")
    return Dump(at.given, FORMAT, tuple(entries), True, tuple(problems), files=frozenset(ours))


def _is_ours(path: Path) -> bool:
    buffer = open_buffer(path)
    return _MARK in buffer[:_LOOKED_AT] or _MARK in buffer[-_LOOKED_AT:]


def _runs(content: object) -> list[tuple[str, list[object]]]:
    """Runners and their iterations."""
    runs = content.get("lst") if isinstance(content, dict) else None
    pairs = [run for run in runs if isinstance(run, list) and len(run) == 2] if isinstance(runs, list) else []
    return [(str(name), iterations) for name, iterations in pairs if isinstance(iterations, list)]


def _runner(at: DumpPath, runners: list[str]) -> str | None:
    """The runner whose outputs are read: the only one, or the one that was asked for."""
    names = list(dict.fromkeys(runners))
    fitting = [name for name in names if name == at.selected] or [n for n in names if n.startswith(at.selected)]
    if len(fitting) == 1 or not names:
        return next(iter(fitting), None)
    some = ", ".join(f"{name:.60}" for name in names[:6]) + (", …" if len(names) > 6 else "")
    which = f"named {at.selected!r:.60}, " if at.selected and not fitting else ""
    example = f"{at.path}::{_shortest_prefix(names[0], names)}"
    count = "no runner " + which + "only " if which else f"the outputs of {len(names)} runners: "
    raise BadFile(at.path, f"holds {count}{printable(some)}; name one as in {printable(example)}")


def _shortest_prefix(name: str, names: list[str]) -> str:
    """The shortest beginning of a name, in whole words, that no other name shares."""
    words = name.split("-")
    prefixes = ("-".join(words[: k + 1]) for k in range(len(words)))
    return next((p for p in prefixes if sum(other.startswith(p) for other in names) == 1), name)


def _entries(path: Path, content: object, runner: str | None) -> Iterator[Entry]:
    if isinstance(content, list):
        for step, feed in enumerate(content):
            for name, value in feed.items() if isinstance(feed, dict) else ():
                yield entry(f"model-input_{name}", _array(path, str(name), value), step)
        return
    for step, result in enumerate(next((results for name, results in _runs(content) if name == runner), ())):
        outputs = result.get("outputs") if isinstance(result, dict) else None
        for name, value in outputs.items() if isinstance(outputs, dict) else ():
            yield entry(str(name), _array(path, str(name), value), step)


def _array(path: Path, name: str, value: object) -> EncodedArray:
    """An array of numpy or torch, which may be wrapped as lazy once or twice."""
    for _ in range(4):
        text = (value.get("array") or value.get("tensor")) if isinstance(value, dict) else None
        if isinstance(text, str):
            return EncodedArray(path, name, text)
        value = value.get("values") if isinstance(value, dict) else None
    return EncodedArray(path, name, "")
