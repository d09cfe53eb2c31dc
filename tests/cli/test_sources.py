"""``--session FILE``: what was done in the app, done again without it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tensordiff.align.rules.file import MapRule, RulesFile
from tensordiff.search.oracle import VerdictOracle
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.session.storage.state import SessionState, identity_of, write_state
from tests.cli.command import Call, assert_one_sentence
from tests.making import numbers, save


def kept(folder: Path, **more: str) -> tuple[Path, Path, Path]:
    """Two dumps of which one layer is paired only by the session."""
    ours = {f"layers.{k}": numbers(8, seed=k) for k in range(6)} | {"b": numbers(8, seed=9)}
    theirs = {name: array if name < "layers.4" else -array for name, array in ours.items() if name != "b"}
    theirs["x"] = ours["b"]
    paths = save(folder / "r.safetensors", ours), save(folder / "c.safetensors", theirs)
    state = SessionState(tuple(map(identity_of, paths)), RulesFile(maps=(MapRule("b", "x"),)), **more)  # type: ignore[arg-type]
    write_state(folder / "session.json", state)
    return *paths, folder / "session.json"


def test_compare_and_align_apply_its_rules(call: Call, tmp_path: Path) -> None:
    ours, theirs, session = kept(tmp_path)
    for command in ("compare", "align"):
        without = json.loads(call(command, ours, theirs, "--no-learn", "--json").out)
        said = call(command, ours, theirs, "--session", session, "--no-learn", "--json")
        assert said.err == ""
        assert len(json.loads(said.out)["pairs"]) == len(without["pairs"]) + 1


def test_dumps_that_changed_are_told_on_stderr(call: Call, tmp_path: Path) -> None:
    ours, theirs, session = kept(tmp_path)
    save(theirs, {"x": np.ones(3, np.float32), "b": np.ones(8, np.float32)})
    said = call("compare", ours, theirs, "--session", session, "-q")
    assert "the candidate changed since the session was kept" in said.err


def test_bisect_goes_on_where_the_search_stood(call: Call, tmp_path: Path) -> None:
    ours, theirs, session = kept(tmp_path)
    opened = Session.open(Request(ours, theirs, session=session))
    start = VerdictOracle.over(opened.comparer, opened.alignment.pairs).start()
    _, _, session = kept(tmp_path, bisect=start.mark("good", 2).log())
    said = json.loads(call("bisect", ours, theirs, "--auto", "--session", session, "--json").out)
    assert said["probes"][0]["mark"] == "good" and said["probes"][0]["index"] == 2


def test_a_session_that_is_none(call: Call, tmp_path: Path) -> None:
    ours, theirs, session = kept(tmp_path)
    assert_one_sentence(call("compare", ours, theirs, "--session", tmp_path / "no.json"), "no.json", "cannot be read")
    session.write_text("{")
    assert_one_sentence(call("align", ours, theirs, "--session", session), "not valid JSON", "is it a session file")
    _, _, session = kept(tmp_path, bisect="good 77 nothing")
    assert_one_sentence(call("bisect", ours, theirs, "--auto", "--session", session), "is of other dumps")
    assert session.exists()
