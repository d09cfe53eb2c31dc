"""A session file's content: what is in it, as a frozen value, and as JSON that is read strictly.

A word that is not known is refused, as in a rules file: passed over it would be lost at the next
writing. Where the file stands, and when it is put aside, is decided in ``state``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tensordiff.align.rules_file import RulesFile, read_text, rules_text
from tensordiff.errors import BadFile, TensordiffError

SCHEMA = "tensordiff.session/1"
_FAMILY = "tensordiff.session/"
T = TypeVar("T")


class Identity(NamedTuple):
    """Which dump it was: where, and what its files come to."""

    path: str
    files: int
    bytes: int
    newest: int
    """When its newest file was changed, in nanoseconds."""


@dataclass(frozen=True)
class State:
    """What a person did. Rows are named by ``row_name``, layers by their canonical name."""

    dumps: tuple[Identity, Identity] | None = None
    """Reference and candidate, as they were; None where it is about none yet."""
    said: RulesFile | None = None
    """All rules as edited; None where nobody edited any."""
    said_over: RulesFile = field(default_factory=RulesFile)
    """What the rules file said when they were edited."""
    marks: tuple[str, ...] = ()
    bisect: str = ""
    """The log of a search, as ``bisect --replay`` takes it."""
    columns: tuple[str, ...] | None = None
    """Those shown; None for those shown unless told."""
    sort: str | None = None
    """A column's id; None for execution order."""
    descending: bool = False
    filter: str = ""
    faults: bool = False
    inputs: bool = False
    cursor: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)
    """By canonical name of the layer."""


def state_text(state: State) -> str:
    """A state as JSON."""
    return json.dumps(_as_json(state), indent=1) + "\n"


def _as_json(state: State) -> dict[str, Any]:
    rules = None if state.said is None else {"said": rules_text(state.said), "over": rules_text(state.said_over)}
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


def state_of(text: str, path: Path) -> State:
    """Read JSON back; ``BadFile`` where it is none of ours."""
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
    """The object of a file, not yet believed."""

    values: Mapping[str, Any]
    path: Path

    def state(self) -> State:
        for key in self.values:
            if key not in _as_json(State()):
                raise BadFile(self.path, f"{key!r:.60} in it is not known")
        state = State(
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

    def _dumps(self) -> tuple[Identity, Identity] | None:
        dumps: dict[str, Any] | None = self._get("dumps", dict | None, None)
        if dumps is None:
            return None
        return self._identity(dumps.get("reference")), self._identity(dumps.get("candidate"))

    def _identity(self, values: object) -> Identity:
        if not isinstance(values, dict) or set(values) != set(Identity._fields):
            raise self._wrong("dumps")
        found = Identity(**values)
        if not isinstance(found.path, str) or not all(type(number) is int for number in found[1:]):
            raise self._wrong("dumps")
        return found

    def _with_rules(self, state: State) -> State:
        rules: dict[str, Any] | None = self._get("rules", dict | None, None)
        if rules is None:
            return state
        if set(rules) != {"said", "over"} or not all(isinstance(text, str) for text in rules.values()):
            raise self._wrong("rules")
        said, over = (self._rules(rules[key]) for key in ("said", "over"))
        return replace(state, said=said, said_over=over)

    def _rules(self, text: str) -> RulesFile:
        try:
            found = read_text(text, "rules")
        except TensordiffError as error:
            raise BadFile(self.path, f"its rules cannot be read: {error}") from error
        return replace(found, rules=tuple(replace(rule, source="") for rule in found.rules))
