"""``--session FILE``: what was done in the app, done again without it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tensordiff.align.rules.file import MapRule, RulesFile
from tensordiff.search.oracle import VerdictOracle
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.session.storage.state import SessionState, identity_of, write_state
from tests.capture.models import tiny_model
from tests.cli.command import Call, assert_one_sentence
from tests.making import numbers, save

PORT = """
import torch
from transformers import AutoModelForCausalLM

def load():
    model = AutoModelForCausalLM.from_pretrained({model!r}, dtype=torch.float32).eval()
    return model, (), dict(input_ids=torch.tensor([[1, 2]]), use_cache=False)
"""


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


@pytest.mark.parametrize("command", [["compare"], ["report"], ["bisect", "--auto"], ["verify", "-o", "out"], []])
def test_options_of_sources_are_refused_beside_dumps(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ours, theirs, _ = kept(tmp_path)
    for words in (["--input-ids", "1,2"], ["--steps", "2"], ["--dtype", "bfloat16"], ["--candidate-device", "gpu"]):
        option = "--device" if words[0] == "--candidate-device" else words[0]
        told = f"{option} is an option of sources, and neither side is one"
        assert_one_sentence(call(*command, ours, theirs, *words), told)
    assert not (tmp_path / "out").exists()


def test_without_a_terminal_the_interpreter_for_reruns_is_taken_as_by_the_app(call: Call, tmp_path: Path) -> None:
    ours, theirs, _ = kept(tmp_path)
    plain = call(ours, theirs)
    assert call(ours, theirs, "--python", sys.executable).out == plain.out


def test_two_checkpoints_take_no_options_of_sources(call: Call, tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", {"layers.0.mlp.down_proj.weight": numbers(8, 8)})
    assert call("compare", path, path).status == 0
    assert_one_sentence(call("compare", path, path, "--prompt", "why"), "--prompt is an option of sources")


def test_an_option_that_only_the_model_beside_a_function_takes_is_said(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tiny_model("llama", tmp_path)
    (tmp_path / "port.py").write_text(PORT.format(model=str(model)))
    said = call("compare", f"hf:{model}", "py:port.py:load", "--input-ids", "1,2", "--dtype", "float32", "-q")
    assert said.status == 0, said.err
    told = f"--input-ids, --dtype: they are for hf:{model} alone; the function py:port.py:load decides for itself"
    assert told in said.err


def test_a_session_that_is_none(call: Call, tmp_path: Path) -> None:
    ours, theirs, session = kept(tmp_path)
    assert_one_sentence(call("compare", ours, theirs, "--session", tmp_path / "no.json"), "no.json", "cannot be read")
    session.write_text("{")
    assert_one_sentence(call("align", ours, theirs, "--session", session), "not valid JSON", "is it a session file")
    _, _, session = kept(tmp_path, bisect="good 77 nothing")
    assert_one_sentence(call("bisect", ours, theirs, "--auto", "--session", session), "is of other dumps")
    assert session.exists()
