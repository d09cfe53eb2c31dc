"""Polygraphy's RunResults: JSON with arrays as base64 of ``.npy``. Iterations are steps.

Order is the runner's own. Several runners may share one file: the first is read and the others are named. Inputs,
which ``--save-inputs`` writes to a file of their own, are read from beside it.
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
from tensordiff.dump.files import map_file, parse_json
from tensordiff.dump.folders import DumpPath
from tensordiff.dump.model import Dump, Entry, Problem, Spec, entry
from tensordiff.dump.readers import Format
from tensordiff.dump.readers.npy import MAX_HEADER_BYTES, NpyHeader, parse_header
from tensordiff.errors import BadFile

FORMAT = "polygraphy"
FORMATS = (
    Format(
        FORMAT,
        "Polygraphy's RunResults and saved inputs",
        'JSON that says `"polygraphy_class"`, one file or a folder of them',
        "that of the runner",
    ),
)

_MARK = b'"polygraphy_class"'
_LOOKED_AT = 4096


@dataclass(frozen=True)
class Base64Array:
    """An array spelled as base64 of a ``.npy`` file."""

    path: Path
    name: str
    text: str

    @cached_property
    def spec(self) -> Spec:
        """Shape and dtype, from the first characters."""
        return self._header(self._decode(self.text[: 4 * (MAX_HEADER_BYTES // 3)])).spec

    def read(self) -> Array:
        """The values, decoded."""
        data = self._decode(self.text)
        header = self._header(data[:MAX_HEADER_BYTES])
        if len(data) != header.total_bytes:
            raise BadFile(self.path, f"its array {self.name!r:.120} is truncated or its header lies; save it again")
        return header.as_array(np.frombuffer(data, np.uint8, offset=header.data_start))

    def _header(self, data: bytes) -> NpyHeader:
        return parse_header(data, self.path, f"its array {self.name!r:.120}")

    def _decode(self, text: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            try:
                return text.encode("latin-1")  # as older versions wrote it
            except UnicodeError as error:
                raise BadFile(self.path, f"its array {self.name!r:.120} is no base64; save it again") from error


def try_open(at: DumpPath) -> Dump | None:
    """Open a file of RunResults, or a folder that holds some."""
    files = at.with_suffix(".json") if at.is_folder else [at.path.name]
    ours = [file for file in files if file.lower().endswith(".json") and _is_ours(at.folder / file)]
    if not ours:
        return None
    entries: list[Entry] = []
    problems: list[Problem] = list(at.problems)
    seen: set[tuple[str, int]] = set()
    for file in sorted(ours, key=lambda file: _is_results(at.folder / file)):  # inputs first
        for item, problem in _entries(at.folder / file):
            if problem is not None:
                problems.append(problem)
            elif item is not None and (item.name, item.step) in seen:
                problems.append(Problem(file, f"has {item.name!r:.120}, which another file has too", is_unread=True))
            elif item is not None:
                seen.add((item.name, item.step))
                entries.append(item)
    if not entries:
        raise BadFile(at.path, "holds no arrays; save the outputs again with Polygraphy")
    return Dump(at.path, FORMAT, tuple(entries), True, tuple(problems), files=frozenset(ours))


def _is_ours(path: Path) -> bool:
    buffer = map_file(path)
    return _MARK in buffer[:_LOOKED_AT] or _MARK in buffer[-_LOOKED_AT:]


def _is_results(path: Path) -> bool:
    return b'"lst"' in map_file(path)[:_LOOKED_AT]


def _entries(path: Path) -> Iterator[tuple[Entry | None, Problem | None]]:
    content = parse_json(map_file(path)[:], path, "it")
    if isinstance(content, list):
        for step, feed in enumerate(content):
            for name, value in feed.items() if isinstance(feed, dict) else ():
                item = entry(f"model-input_{name}", _array(path, str(name), value), step)
                yield item, None
        return
    runs = content.get("lst") if isinstance(content, dict) else None
    runs = [run for run in runs if isinstance(run, list) and len(run) == 2] if isinstance(runs, list) else []
    for runner, _ in runs[1:]:
        why = f"its runner {runner!s:.80} is left out: a file is one side; save each runner's outputs to its own file"
        yield None, Problem(path.name, why, is_unread=True)
    for step, result in enumerate(runs[0][1] if runs and isinstance(runs[0][1], list) else ()):
        outputs = result.get("outputs") if isinstance(result, dict) else None
        for name, value in outputs.items() if isinstance(outputs, dict) else ():
            yield entry(str(name), _array(path, str(name), value), step), None


def _array(path: Path, name: str, value: object) -> Base64Array:
    """An array, which may be wrapped as lazy once or twice."""
    for _ in range(4):
        if isinstance(value, dict) and isinstance(value.get("array"), str):
            return Base64Array(path, name, value["array"])
        value = value.get("values") if isinstance(value, dict) else None
    return Base64Array(path, name, "")
