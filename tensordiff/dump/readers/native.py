"""tensordiff's own dumps: a manifest and shards, as ``DumpWriter`` writes them.

The manifest says what every tensor is and where its bytes lie, so no shard is opened before a tensor is read. A folder
with only the journal is a capture that was stopped: it is read as far as it goes and flagged as interrupted. Nothing is
trusted unchecked: ``manifest`` checks each record by itself, this module checks it against the other records and the
files.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tensordiff.dump.files import STRICT_JSON, Bytes, MappedFile, map_file, parse_json, version_of
from tensordiff.dump.folders import DumpPath, member_path
from tensordiff.dump.model import Dump, Entry, EntryKey, Problem
from tensordiff.dump.native import manifest
from tensordiff.dump.native.manifest import JOURNAL, MANIFEST, RecordError
from tensordiff.dump.readers import Format
from tensordiff.dump.readers.safetensors import read_header
from tensordiff.errors import BadFile
from tensordiff.util.garbage_collector import gc_paused
from tensordiff.util.slices import SlicedDict, SlicedSet, release

FORMATS = (
    Format(
        "tensordiff",
        "our own dump",
        "`manifest.json`, or the journal of a stopped capture",
        "the manifest",
    ),
)

_MAX_BYTES = 1 << 30  # some three million entries; what is longer is no manifest
_ENTRIES_MARK = b'"entries": [\n'
"""Where the records begin; each of them has a line of its own."""
_SCHEMA_MARK = manifest.SCHEMA.rpartition("/")[0].encode()


class _Contents(NamedTuple):
    """The content of a manifest or a journal."""

    facts: dict[str, object]
    entries: list[Entry]
    problems: list[Problem]
    shards: Collection[str] = ()


def try_open(at: DumpPath) -> Dump | None:
    """Open a dump that ``DumpWriter`` wrote, whether the capture ended or was stopped."""
    name = next((name for name in (MANIFEST, JOURNAL) if name in at.files), None)
    if name is None:
        return None
    was_finished = name == MANIFEST
    path = at.path / name
    text = _map_manifest(path)
    # Other programs use these file names too: it is ours if it says so, or lies beside shards.
    if _SCHEMA_MARK not in text[:200] and not any(map(manifest.is_shard_name, at.files)):
        return None
    with gc_paused():
        read = _read_manifest(path, text) if was_finished else _read_journal(path, bytes(text))
    return Dump(
        path=at.path,
        format="tensordiff",
        entries=tuple(read.entries),
        ordered=read.facts.get("order") != "unknown",  # a converted dump may not know
        problems=(*at.problems, *read.problems),
        interrupted=not was_finished,
        facts={key: value for key, value in read.facts.items() if value is not None},
        files=frozenset(
            name for name in at.files if name in read.shards or _is_empty_shard(at.path / name, was_finished)
        ),
    )


def _is_empty_shard(path: Path, was_finished: bool) -> bool:
    """Whether a shard that no record names holds nothing: a shard is begun before its first tensor is complete."""
    if not manifest.is_shard_name(path.name):
        return False
    try:
        return not was_finished or not read_header(path).rows
    except BadFile:
        return False


def _map_manifest(path: Path) -> Bytes:
    data = map_file(path)
    if len(data) > _MAX_BYTES:
        raise BadFile(path, f"is {len(data):,} bytes long, which no manifest is")
    return data


def _read_manifest(path: Path, text: Bytes) -> _Contents:
    try:
        return _read_lines(path, text)
    except (BadFile, ValueError, RecursionError):
        pass  # other formatting, or an error: parsing the whole text shows which
    try:
        facts = _without_schema(path, parse_json(bytes(text), path, "the manifest"))
    except BadFile as error:
        raise BadFile(path, f"{error.problem}, or open the .safetensors files beside it one by one") from error
    records = facts.pop("entries", None)
    if not isinstance(records, list):
        raise BadFile(path, "the manifest has no list of entries; capture it again")
    shards = _Shards(path.parent, are_final=True)
    try:
        entries = [shards.entry(record)[0] for record in records]
    except RecordError as error:
        raise _bad_record(path, f"entry {len(shards)}", records[len(shards)], error) from error
    return _Contents(facts, entries, list(shards.problems()), shards.names)


def _read_lines(path: Path, text: Bytes) -> _Contents:
    """Read a manifest as our writer formats it, one record per line, so that only one of them is in memory at a time.

    For a million entries, the records take more memory than everything else. Any other formatting raises an error.
    """
    begin = text.find(_ENTRIES_MARK)
    facts = _without_schema(path, parse_json(text[: max(begin, 0)] + _ENTRIES_MARK + b"]}", path, "the manifest"))
    facts.pop("entries")
    shards, entries = _Shards(path.parent, are_final=True), []
    lines = io.BytesIO(text) if isinstance(text, bytes) else text
    lines.seek(begin + len(_ENTRIES_MARK))
    for line in iter(lines.readline, b""):
        is_last = not line.endswith(b",\n")
        entries.append(shards.entry(STRICT_JSON.decode(line[: -1 if is_last else -2].decode()))[0])
        if is_last:
            break
    if lines.read() != b"]}\n":
        raise ValueError("does not end with its entries")
    shards.forget_keys()
    return _Contents(facts, entries, list(shards.problems()), shards.names)


def _bad_record(path: Path, where: str, record: object, error: RecordError) -> BadFile:
    name = record.get("name") if isinstance(record, dict) else None
    called = f" ({name:.120})" if isinstance(name, str) else ""
    return BadFile(path, f"{where}{called} {error}; capture it again")


def _without_schema(path: Path, content: object) -> dict[str, object]:
    """The fields beside the schema, which must be ours."""
    if not isinstance(content, dict) or "schema" not in content:
        raise BadFile(path, "does not say what schema it follows; capture it again")
    schema = content.pop("schema")
    if schema != manifest.SCHEMA:
        shown = f"{schema!r:.80}"
        raise BadFile(path, f"follows the schema {shown}, and we read {manifest.SCHEMA!r}; try a newer tensordiff")
    return content


def _read_journal(path: Path, text: bytes) -> _Contents:
    """Read all complete lines up to the first damaged one."""
    lines = (line[:-1] for line in io.BytesIO(text) if line.endswith(b"\n"))
    first = next(lines, b"")
    read, shards = _Contents({}, [], []), _Shards(path.parent, are_final=False)
    _add_line(path, read, shards, "line 1", _without_schema(path, parse_json(first, path, "line 1")))
    for number, line in enumerate(lines, 2):
        where = f"line {number}"
        try:
            _add_line(path, read, shards, where, parse_json(line, path, where))
        except BadFile as error:
            why = f"{error.problem}; it and what follows were left out"
            read.problems.append(Problem(JOURNAL, why, is_unread=True))
            break
    shards.forget_keys()
    lost = (problem._replace(is_unread=True) for problem in shards.problems())  # with a manifest they stay entries
    return read._replace(problems=[*read.problems, *lost], shards=shards.names)


def _add_line(path: Path, read: _Contents, shards: _Shards, where: str, line: object) -> None:
    facts = line.get("facts") if isinstance(line, dict) else None
    if isinstance(facts, dict):
        read.facts.update(facts)
        return
    try:
        entry, is_there = shards.entry(line)
    except RecordError as error:
        raise _bad_record(path, where, line, error) from error
    if is_there:
        read.entries.append(entry)


@dataclass(slots=True)
class _Shard:
    file: MappedFile
    size: int
    """Bytes in the file; 0 if it is missing."""
    end: int = 0
    """Where the last tensor ends, by the records read so far."""


class _Shards:
    """The shards that the records of a manifest or a journal refer to."""

    def __init__(self, folder: Path, *, are_final: bool) -> None:
        """``are_final`` says that the capture is over, so that shards do not grow any more."""
        self._folder, self._are_final = folder, are_final
        self._shards: dict[str, _Shard] = {}
        self._seen: SlicedSet[EntryKey] = SlicedSet()
        self._texts: SlicedDict[str, str] = SlicedDict()

    def __len__(self) -> int:
        """How many records were read."""
        return len(self._seen)

    @property
    def names(self) -> Collection[str]:
        """The shards that records named."""
        return self._shards.keys()

    def entry(self, record: object) -> tuple[Entry, bool]:
        """Read a record, and whether its bytes are there; raises if two records have one key, or share bytes."""
        entry, name, begin, end = manifest.parse_record(record, self._file, self._texts)
        shard = self._shards[name]
        if begin < shard.end:
            raise RecordError("overlaps the tensor before it")
        shard.end = end
        if entry.key in self._seen:
            raise RecordError(f"is there twice for step {entry.step}, call {entry.call}")
        self._seen.add(entry.key)
        return entry, end <= shard.size

    def _file(self, name: str) -> MappedFile:
        if name not in self._shards:
            if not manifest.is_shard_name(name):
                raise RecordError(f"lies in {name!r:.80}, which is no shard of this dump")
            path = member_path(self._folder, name)
            version = version_of(path) if path.is_file() else None
            file = MappedFile(path, version if self._are_final else None)
            self._shards[name] = _Shard(file, version.size if version else 0)
        return self._shards[name].file

    def forget_keys(self) -> None:
        """Free the keys of the records once all are read; there may be millions."""
        release(self._seen, self._texts)

    def problems(self) -> Iterator[Problem]:
        """The shards that hold fewer bytes than the records say."""
        for name, shard in self._shards.items():
            if (lost := shard.end - shard.size) > 0:
                yield Problem(name, f"is missing or cut off: {lost:,} bytes are not there; copy it again")
