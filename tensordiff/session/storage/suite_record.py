"""The record that a finished model of a suite leaves (``done.json``), and whether its result may be shown again.

The record holds the result, its dependencies, the files that the child processes loaded, and the files that were
written. The folder may be a stranger's, or a CI cache that others fill, so a record is believed only if this user has
signed it, and otherwise ignored. Only a passing result is shown again: after a failure something was probably fixed,
perhaps where it cannot be observed. When in doubt, the model is verified again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tensordiff.errors import printable
from tensordiff.session.storage.dependencies import Dependencies
from tensordiff.util.atomic_write import write_file
from tensordiff.util.file_state import ABSENT, file_state, open_without_waiting, written_since
from tensordiff.util.user_key import sign, why_not_own

RECORD = "done.json"
SCHEMA = "tensordiff.suite_result/1"
HOLDS = ("agrees", "drifts")
"""The verdicts that pass."""
_MOST_BYTES = 64 << 20


class Result(NamedTuple):
    """The result of one model."""

    name: str
    verdict: str
    culprit: str | None
    rel_l2: str
    pairs: int
    sentence: str


class Record(NamedTuple):
    """A result, and everything that must be unchanged for it to be shown again."""

    result: Result
    depends: Mapping[str, str]
    loaded: Mapping[str, tuple[tuple[str, ...], str]]
    """The files that child processes loaded: by folder, their names and their combined state."""
    written: Mapping[str, str]
    """The state of every written file, by path."""


def record_of(
    result: Result, depends: Dependencies, loaded: Iterable[str], written: Iterable[Path], since_ns: int
) -> Record | str:
    """A record, or the reason why there can be none: a file changed while the model was verified."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(set(loaded)):
        if written_since(path, since_ns):
            return f"{printable(path)} was written"
        folder, _, name = path.rpartition(os.sep)
        names[folder].append(name)
    groups = {folder: (tuple(files), _group_state(folder, files)) for folder, files in names.items()}
    return Record(result, depends.states, groups, {str(path): file_state(path) for path in written})


def write_record(path: Path, record: Record) -> None:
    """Write a record, signed."""
    text = _text(record)
    write_file(path, json.dumps({"signature": sign(SCHEMA, text), "record": text}) + "\n")


def read_record(path: Path, name: str) -> Record | str:
    """This user's record of a model of this name, or the reason why there is none; empty if there is no file."""
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"its {RECORD} cannot be read ({(error.strerror or str(error)).lower()})"
    try:
        found = json.loads(data) if len(data) <= _MOST_BYTES else None
        text, signature = (found["record"], found["signature"]) if isinstance(found, dict) else (None, None)
        if not isinstance(text, str):
            return f"its {RECORD} was not written by tensordiff"
        if why := why_not_own(SCHEMA, text, signature):
            return f"its {RECORD} is ignored: {why}"
        record = _record(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return f"its {RECORD} was not written by tensordiff"
    return record if record.result.name == name else f"its {RECORD} is of another model"


def why_again(record: Record, now: Dependencies, *, believes: bool) -> str:
    """Why a model must be verified again; empty if its record holds. ``believes`` ignores doubts."""
    if record.result.verdict not in HOLDS:
        return "it did not agree"
    if now.doubts and not believes:
        return now.doubts[0]
    if changed := now.changed(record.depends):
        return f"{changed} changed"
    for folder, (names, state) in record.loaded.items():
        if _group_state(folder, names) != state:
            return f"what it ran changed: {printable(_first_changed(folder, names))}"
    for path, state in record.written.items():
        if state == ABSENT or file_state(path) != state:
            return f"{printable(path)} is not there as it was written"
    return ""


def _group_state(folder: str, names: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0{file_state(folder + os.sep + name)}\0".encode("utf-8", "backslashreplace"))
    return digest.hexdigest()[:32]


def _first_changed(folder: str, names: Iterable[str]) -> str:
    """The file if there is only one, else the folder."""
    some = list(names)
    return folder + os.sep + some[0] if len(some) == 1 else folder


# --- as text --------------------------------------------------------------------------------------


def _text(record: Record) -> str:
    result, depends, loaded, written = record
    return json.dumps({"result": result._asdict(), "depends": depends, "loaded": loaded, "written": written})


def _record(found: Any) -> Record:
    """A record from JSON; raises if anything is not as written."""
    result = Result(**found["result"])
    if result.verdict not in ("agrees", "drifts", "diverges", "unknown") or type(result.pairs) is not int:
        raise ValueError("a verdict is one of four words, and pairs are counted")
    texts = result.name, result.rel_l2, result.sentence, result.culprit or ""
    loaded = {str(folder): (tuple(names), state) for folder, (names, state) in found["loaded"].items()}
    texts += tuple(_texts(found["depends"])) + tuple(_texts(found["written"]))
    texts += tuple(text for names, state in loaded.values() for text in (*names, state))
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("all else is text")
    return Record(result, dict(found["depends"]), loaded, dict(found["written"]))


def _texts(found: Mapping[str, Any]) -> Iterator[Any]:
    return iter(found.values())
