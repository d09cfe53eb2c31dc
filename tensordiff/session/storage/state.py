"""The session file: what a user did with two dumps, kept in the user's state folder and read when they return.

The file lies in the state folder, named after the pair, or where ``--session`` says. A file beside a dump came with
that dump, and its rules and tolerances would decide the verdict, so it is never read from there without asking (see
``session_offer``). A file is replaced as a whole or not at all; one that cannot be read is renamed, never overwritten.
Everything in it is by name, so it can be applied to other dumps, and it records its dumps, so that changes can be
reported. The JSON is read strictly: an unknown key is refused, since the next write would lose it. Nothing here opens a
dump.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tensordiff.align.match import Pair
from tensordiff.align.rules.file import RulesFile, parse_rules_text, rules_text
from tensordiff.align.rules.rule_book import rebased
from tensordiff.errors import BadFile, TensordiffError, WriteError, printable
from tensordiff.util.atomic_write import write_file
from tensordiff.util.remote import RemotePath
from tensordiff.util.small_files import TooLong, read_small

SCHEMA = "tensordiff.session/1"
_FAMILY = "tensordiff.session/"
T = TypeVar("T")


class DumpIdentity(NamedTuple):
    """How a dump looked on disk: its path, and the number, total size and latest date of its files."""

    path: str
    files: int
    bytes: int
    newest: int
    """When its newest file was changed, in nanoseconds."""


@dataclass(frozen=True)
class SessionState:
    """What a user did. Rows are identified by ``row_name``, layers by their canonical name."""

    dumps: tuple[DumpIdentity, DumpIdentity] | None = None
    """The identities of reference and candidate; None if nothing was compared yet."""
    rules: RulesFile | None = None
    """All rules as edited; None if none were."""
    rules_base: RulesFile = field(default_factory=RulesFile)
    """The rules file as it was when the rules were edited."""
    marks: tuple[str, ...] = ()
    bisect: str = ""
    """The log of a search, in the format of ``bisect --replay``."""
    columns: tuple[str, ...] | None = None
    """Columns of the table; None for the default."""
    sort: str | None = None
    """The id of the column; None for execution order."""
    descending: bool = False
    filter: str = ""
    faults: bool = False
    inputs: bool = False
    cursor: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Notes by the canonical name of the layer."""


def state_text(state: SessionState) -> str:
    """A state as JSON."""
    return json.dumps(_as_json(state), indent=1) + "\n"


def _as_json(state: SessionState) -> dict[str, Any]:
    rules = None if state.rules is None else {"said": rules_text(state.rules), "over": rules_text(state.rules_base)}
    dumps = state.dumps and dict(zip(("reference", "candidate"), (d._asdict() for d in state.dumps), strict=True))
    return {
        "schema": SCHEMA,
        "dumps": dumps,
        "rules": rules,
        "marks": list(state.marks),
        "bisect": state.bisect,
        "columns": None if state.columns is None else list(state.columns),
        "sort": state.sort,
        "descending": state.descending,
        "filter": state.filter,
        "faults": state.faults,
        "inputs": state.inputs,
        "cursor": state.cursor,
        "notes": dict(state.notes),
    }


def parse_state(text: str, path: Path) -> SessionState:
    """Parse JSON; raises ``BadFile`` if it is not a session file."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFile(path, f"is not valid JSON ({error!s:.120}); is it a session file?") from error
    if not isinstance(content, dict):
        raise BadFile(path, "is not a session file: it holds no object")
    _check_schema(content.get("schema"), path)
    return _Content(content, path).state()


def _check_schema(schema: object, path: Path) -> None:
    if schema == SCHEMA:
        return
    if isinstance(schema, str) and schema.startswith(_FAMILY):
        raise BadFile(path, f"was written by another version of tensordiff ({schema:.60}; this one reads {SCHEMA})")
    raise BadFile(path, f"is not a session file: its schema is {schema!r:.60}, not {SCHEMA}")


class _Content(NamedTuple):
    """The JSON object of a file, validated as it is read."""

    values: Mapping[str, Any]
    path: Path

    def state(self) -> SessionState:
        for key in self.values:
            if key not in _as_json(SessionState()):
                raise BadFile(self.path, f"{key!r:.60} in it is not known")
        state = SessionState(
            dumps=self._dumps(),
            marks=self._texts("marks") or (),
            bisect=self._get("bisect", str, ""),
            columns=self._texts("columns"),
            sort=self._get("sort", str | None, None),
            descending=self._get("descending", bool, False),
            filter=self._get("filter", str, ""),
            faults=self._get("faults", bool, False),
            inputs=self._get("inputs", bool, False),
            cursor=self._get("cursor", str, ""),
            notes=self._notes(),
        )
        return self._with_rules(state)

    def _get(self, key: str, kind: Any, default: T) -> T:
        value: T = self.values.get(key, default)
        if not isinstance(value, kind):
            raise self._wrong(key)
        return value

    def _wrong(self, key: str) -> BadFile:
        return BadFile(self.path, f"{key!r} in it is not what a session file has there")

    def _texts(self, key: str) -> tuple[str, ...] | None:
        values: list[str] | None = self._get(key, list | None, None)
        if values is not None and not all(isinstance(value, str) for value in values):
            raise self._wrong(key)
        return None if values is None else tuple(values)

    def _notes(self) -> dict[str, str]:
        notes: dict[str, str] = self._get("notes", dict, {})
        if not all(isinstance(note, str) for note in notes.values()):
            raise self._wrong("notes")
        return notes

    def _dumps(self) -> tuple[DumpIdentity, DumpIdentity] | None:
        dumps: dict[str, Any] | None = self._get("dumps", dict | None, None)
        if dumps is None:
            return None
        return self._identity(dumps.get("reference")), self._identity(dumps.get("candidate"))

    def _identity(self, values: object) -> DumpIdentity:
        if not isinstance(values, dict) or set(values) != set(DumpIdentity._fields):
            raise self._wrong("dumps")
        identity = DumpIdentity(**values)
        if not isinstance(identity.path, str) or not all(type(number) is int for number in identity[1:]):
            raise self._wrong("dumps")
        return identity

    def _with_rules(self, state: SessionState) -> SessionState:
        rules: dict[str, Any] | None = self._get("rules", dict | None, None)
        if rules is None:
            return state
        if set(rules) != {"said", "over"} or not all(isinstance(text, str) for text in rules.values()):
            raise self._wrong("rules")
        return replace(state, rules=self._rules(rules["said"]), rules_base=self._rules(rules["over"]))

    def _rules(self, text: str) -> RulesFile:
        try:
            rules = parse_rules_text(text, "rules")
        except TensordiffError as error:
            raise BadFile(self.path, f"its rules cannot be read: {error}") from error
        return replace(rules, rules=tuple(replace(rule, source="") for rule in rules.rules))


# --- the file -------------------------------------------------------------------------------------

SUFFIX = ".tensordiff-session.json"
_MAX_BYTES = 1 << 26


class RestoredState(NamedTuple):
    """A state that was read back, and messages about it for the user."""

    state: SessionState
    sentences: tuple[str, ...] = ()


def session_path(reference: Path, candidate: Path) -> Path:
    """The path of the session of two dumps; links to the same dumps give the same path."""
    pair = b"\0".join(os.fsencode(path.resolve()) for path in (reference, candidate))
    digest = hashlib.sha256(pair).hexdigest()[:32]
    return state_folder() / "sessions" / f"{candidate.resolve().name[:24] or 'dump'}.vs.{digest}{SUFFIX}"


def state_folder() -> Path:
    """The user's own folder for data that is kept between runs."""
    from platformdirs import user_state_path

    return user_state_path("tensordiff", appauthor=False)


def read_state(path: Path) -> SessionState:
    """Read a session file; raises ``BadFile`` if it is not one."""
    try:
        text = read_small(path, _MAX_BYTES).decode()
    except TooLong as error:
        raise BadFile(path, f"is larger than {_MAX_BYTES >> 20} MB; is it a session file?") from error
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BadFile(path, f"the session cannot be read ({why!s:.120})") from error
    return parse_state(text, path)


def restore_state(path: Path, *, may_rename: bool = True) -> RestoredState:
    """The stored state, or an empty one. A file that cannot be read is renamed, or left alone."""
    if not path.exists():
        return RestoredState(SessionState())
    try:
        return RestoredState(read_state(path))
    except BadFile as error:
        then = _put_aside(path) if may_rename else "it is left as it is"
        return RestoredState(SessionState(), (f"{error}; {then}",))


def _put_aside(path: Path) -> str:
    """Rename a file so that it is not overwritten; returns the end of a sentence about that."""
    free = next(name for name in _aside(path) if not name.exists())
    try:
        path.rename(free)
    except OSError as error:
        return f"it stays, and cannot be put aside ({error.strerror})"
    return f"it is put aside as {printable(free.name)}, and a new session begins"


def _aside(path: Path) -> Iterator[Path]:
    return (path.with_name(f"{path.name}.aside{k or ''}") for k in count())


def write_state(path: Path, state: SessionState) -> None:
    """Write a session file; raises ``WriteError``."""
    try:
        write_file(path, state_text(state), make_folders=True)
    except WriteError as error:
        raise WriteError(f"the session is not kept: {error}, or give another file with --session") from error


def rules_of_state(state: SessionState, file: RulesFile | None) -> RulesFile:
    """The edited rules, merged with later changes of their file; without a file, as they were."""
    if state.rules is None or file is None:
        return state.rules or file or RulesFile()
    rules = rebased(state.rules, state.rules_base, file)
    sources = {rule: rule.source for rule in file.rules}
    return replace(rules, rules=tuple(replace(rule, source=sources.get(rule, "")) for rule in rules.rules))


def identity_of(path: Path) -> DumpIdentity:
    """How a dump looks on disk: the size and date of every file; none is opened."""
    stats = [stat for file in _files(path) if (stat := _stat(file)) is not None]
    newest = max((one.st_mtime_ns for one in stats), default=0)
    return DumpIdentity(str(path.absolute()), len(stats), sum(one.st_size for one in stats), newest)


def _files(path: Path) -> Iterator[str | Path]:
    if isinstance(path, RemotePath) and path.is_dir():
        return (file for file in path.iterdir() if file.is_file())
    if not path.is_dir():
        return iter((path,))
    return (f"{folder}{os.sep}{name}" for folder, _, names in os.walk(path) for name in names)


def _stat(file: str | Path) -> os.stat_result | None:
    try:
        if isinstance(file, RemotePath):
            return file.stat()
        return os.stat(file)  # noqa: PTH116 - a dump may have a hundred thousand files
    except OSError:
        return None  # deleted since the folder was listed, or a dangling link


def what_changed(state: SessionState, reference: DumpIdentity, candidate: DumpIdentity) -> tuple[str, ...]:
    """A sentence for each dump that changed since the session was written."""
    if state.dumps is None:
        return ()
    sides = zip(("reference", "candidate"), state.dumps, (reference, candidate), strict=True)
    return tuple(sentence for side, then, now in sides if (sentence := _difference(side, then, now)))


def _difference(side: str, then: DumpIdentity, now: DumpIdentity) -> str:
    if then[1:] == now[1:]:
        return ""
    if then.path != now.path:
        return f"the session is of another {side}: {printable(then.path)}"
    if then[1:3] == now[1:3]:
        return f"the {side} was written again since the session was kept: {printable(now.path)}"
    was, is_now = (f"{one.files} files of {one.bytes:,} bytes" for one in (then, now))
    return f"the {side} changed since the session was kept: {printable(now.path)} had {was}, and has {is_now}"


def row_name(pair: Pair) -> str:
    """The name that identifies a row in a session file."""
    step = f"step {pair.reference.step}: " if pair.reference.step else ""
    return f"{step}{pair.reference.name} = {pair.candidate.name}"
