"""The session file: what is kept comes back, what cannot be read is put aside, and nothing is lost by it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensordiff.align.rules.file import MapRule, RulesFile, write_rules_file
from tensordiff.align.rules.rule import Rule
from tensordiff.errors import BadFile, WriteError
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.session.storage.state import (
    SCHEMA,
    SUFFIX,
    SessionState,
    identity_of,
    read_state,
    restore_state,
    row_name,
    rules_of_state,
    session_path,
    what_changed,
    write_state,
)
from tests.align.rules.rules_samples import READ
from tests.align.rules.test_writing import FILES
from tests.making import numbers, save, write

TEXTS = st.text(max_size=12)
STATES = st.builds(
    SessionState,
    rules=st.none() | FILES,
    marks=st.lists(TEXTS, max_size=3).map(tuple),
    bisect=TEXTS,
    columns=st.none() | st.lists(TEXTS, max_size=3).map(tuple),
    sort=st.none() | TEXTS,
    descending=st.booleans(),
    filter=TEXTS,
    cursor=TEXTS,
    notes=st.dictionaries(TEXTS, TEXTS, max_size=3),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(STATES)
def test_what_is_kept_comes_back(tmp_path: Path, state: SessionState) -> None:
    path = tmp_path / "session.json"
    write_state(path, state)
    assert read_state(path) == state
    assert restore_state(path) == (state, ())


def test_nothing_kept_is_an_empty_state(tmp_path: Path) -> None:
    assert restore_state(tmp_path / "none.json") == (SessionState(), ())


def kept_as_json(path: Path, **changes: object) -> Path:
    write_state(path, SessionState(rules=READ, rules_base=RulesFile()))
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"\xff\xfe", "cannot be read"),
        (b"[]", "holds no object"),
        (b"{}", "its schema is None"),
        (b'{"schema": 3}', "its schema is 3"),
        (b'{"schema": "tensordiff.compare/1"}', "is not a session file"),
        (b'{"schema": "tensordiff.session/2"}', "written by another version"),
        (b'{"schema": "tensordiff.session/1", "new": 1}', "'new' in it is not known"),
    ],
)
def test_what_cannot_be_read_is_put_aside_with_a_sentence(tmp_path: Path, text: bytes, why: str) -> None:
    path = tmp_path / "session.json"
    path.write_bytes(text)
    with pytest.raises(BadFile, match=why):
        read_state(path)
    found = restore_state(path)
    assert found.state == SessionState()
    assert why in found.sentences[0] and "put aside as session.json.aside" in found.sentences[0]
    write_state(path, SessionState(filter="mine"))
    assert (tmp_path / "session.json.aside").read_bytes() == text
    path.write_bytes(text)
    restore_state(path)
    assert (tmp_path / "session.json.aside1").read_bytes() == text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("marks", "abc"), ("marks", [1]), ("bisect", None), ("columns", {}), ("sort", 3), ("descending", 1),
        ("filter", []), ("notes", {"a": 1}), ("notes", []), ("dumps", []), ("dumps", {"reference": 1}),
        ("dumps", {"reference": {"path": "a", "files": "1", "bytes": 1, "newest": 1}, "candidate": None}),
        ("rules", "x"), ("rules", {"said": "a"}), ("rules", {"said": 1, "over": ""}), ("cursor", 1), ("faults", "no"),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_refused(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(BadFile, match=f"'{key}' in it is not what"):
        read_state(kept_as_json(tmp_path / "session.json", **{key: value}))


def test_rules_that_are_none_are_pointed_at(tmp_path: Path) -> None:
    path = kept_as_json(tmp_path / "s.json", rules={"said": "[[rule]]\nmatch = '('\nreplace = ''", "over": ""})
    with pytest.raises(BadFile, match="its rules cannot be read: rules: line 2, column"):
        read_state(path)


@pytest.fixture
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_in_the_state_folder_by_the_pair(tmp_path: Path, state_home: Path) -> None:
    path = session_path(tmp_path / "torch", tmp_path / "max")
    assert path.is_relative_to(state_home) and path.name.startswith("max.vs.") and path.name.endswith(SUFFIX)
    others = [("fp32/torch", "max"), ("torch", "v2/max"), ("max", "torch"), ("torch:max", "max"), ("torch", "max:max")]
    pairs = {session_path(tmp_path / one, tmp_path / other) for one, other in others}
    assert len(pairs) == len(others) and path not in pairs
    assert len(session_path(tmp_path / ("r" * 200), tmp_path / ("c" * 200)).name.encode()) < 255
    write_state(path, SessionState(filter="x"))
    assert restore_state(path).state.filter == "x"


def test_the_same_pair_by_another_way(tmp_path: Path, state_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "max"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "max")
    monkeypatch.chdir(tmp_path)
    found = {session_path(Path("torch"), Path("max")), session_path(tmp_path / "torch", Path("torch/../link"))}
    assert len(found) == 1


def test_a_file_that_may_not_be_renamed_stays(tmp_path: Path) -> None:
    path = tmp_path / "session.json"
    path.write_text("{")
    found = restore_state(path, may_rename=False)
    assert "left as it is" in found.sentences[0] and list(tmp_path.iterdir()) == [path]


def test_where_it_was_told_or_nowhere(tmp_path: Path) -> None:
    blocked = tmp_path / "a_file"
    blocked.write_text("")
    with pytest.raises(WriteError):
        write_state(blocked / "session.json", SessionState())


def test_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "session.json"
    write_state(path, SessionState(filter="old"))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match="no space left"):
        write_state(path, SessionState(filter="new"))
    assert read_state(path).filter == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_dumps_that_changed_are_named(tmp_path: Path) -> None:
    ours, theirs = write(tmp_path / "ours", {"a": numbers(4)}), save(tmp_path / "t.safetensors", {"a": numbers(4)})
    then = identity_of(ours), identity_of(theirs)
    state = SessionState(dumps=then)
    assert what_changed(state, *then) == ()
    os.utime(theirs, ns=(1, 1))
    (ours / "more").write_text("x")
    assert [one.split(" since")[0] for one in what_changed(state, identity_of(ours), identity_of(theirs))] == [
        "the reference changed", "the candidate was written again",
    ]  # fmt: skip
    other = save(tmp_path / "other.safetensors", {"b": numbers(9)})
    assert "of another candidate" in what_changed(state, then[0], identity_of(other))[0]
    assert what_changed(SessionState(), *then) == ()
    assert identity_of(tmp_path / "hf:none").files == 0


def test_a_link_to_nowhere_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "link").symlink_to(tmp_path / "gone")
    assert identity_of(tmp_path / "d").files == 0


def test_rules_come_back_over_a_file_and_without_one(tmp_path: Path) -> None:
    rule, said = Rule("both", "a", "b"), RulesFile(rules=(Rule("both", "c", "d"), Rule("both", "a", "b")))
    state = SessionState(rules=said, rules_base=RulesFile(rules=(rule,)))
    assert rules_of_state(state, None) == said
    file = RulesFile(rules=(replace(rule, source="rules.toml"),))
    assert [one.source for one in rules_of_state(state, file).rules] == ["", "rules.toml"]
    assert rules_of_state(SessionState(), file) is file


def test_a_session_is_opened_as_it_was_left(tmp_path: Path) -> None:
    ours = save(tmp_path / "r.safetensors", {"a": numbers(4), "b": numbers(4, seed=1)})
    theirs = save(tmp_path / "c.safetensors", {"a": numbers(4), "x": numbers(4, seed=1)})
    kept, rules = tmp_path / "session.json", tmp_path / "rules.toml"
    said = RulesFile(maps=(MapRule("b", "x"),))
    write_state(kept, SessionState(rules=said))
    session = Session.open(Request(ours, theirs, session=kept))
    assert [row_name(pair) for pair in session.alignment.pairs] == ["a = a", "b = x"]
    assert session.rules == said and session.saved_rules == RulesFile()
    write_rules_file(rules, RulesFile(rules=(Rule("both", "zz", ""),)))
    both = Session.open(Request(ours, theirs, rules=rules, session=kept))
    assert len(both.rules.rules) == 1 and len(both.alignment.pairs) == 2


def test_realigned_is_as_if_it_had_been_said_at_once(tmp_path: Path) -> None:
    ours = {f"layers.{k}.{n}": numbers(4, seed=k) for k in range(3) for n in ("a", "b")}
    theirs = {name.replace(".b", ".y"): array for name, array in ours.items()}
    paths = save(tmp_path / "r.safetensors", ours), save(tmp_path / "c.safetensors", theirs)
    request = Request(*paths, injected=paths[1])
    said = RulesFile(maps=(MapRule("layers.0.b", "layers.0.y"),))
    rules = tmp_path / "rules.toml"
    write_rules_file(rules, said)
    at_once, later = Session.open(replace(request, rules=rules)), Session.open(request).realigned(said)
    for session in (at_once, later):
        assert len(session.alignment.pairs) == 6
        assert all(row.injected is not None for row in session.rows())
    assert list(map(row_name, at_once.alignment.pairs)) == list(map(row_name, later.alignment.pairs))


def test_the_schema_is_as_written(tmp_path: Path) -> None:
    assert json.loads(kept_as_json(tmp_path / "s.json").read_text())["schema"] == SCHEMA == "tensordiff.session/1"
