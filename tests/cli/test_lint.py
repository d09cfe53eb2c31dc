"""``tensordiff lint``: its status and what it prints; what it finds is tested beside the checks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.cli.running import CANDIDATE, MAX, REFERENCE, Call, assert_one_sentence
from tests.making import numbers, save, save_npy, truncate, write


def test_a_healthy_dump(call: Call) -> None:
    assert call("lint", CANDIDATE) == (0, "nothing found\n", "")


def test_a_note_is_no_failure(call: Call) -> None:
    said = call("lint", MAX)
    assert said.status == 0
    assert said.out.startswith("· note: a max dump does not say in which order its layers ran\n    why it matters: ")
    assert said.out.endswith("1 found\n")


def test_a_warning_is_status_1(call: Call, tmp_path: Path) -> None:
    said = call("lint", save(tmp_path / "d.safetensors", {"a": np.zeros((4, 4))}))
    assert said.status == 1
    assert "! warning: a: 1 outputs are all zero\n" in said.out


def test_an_error_is_status_2(call: Call, tmp_path: Path) -> None:
    made = save_npy(tmp_path, {"a": numbers(64)})
    truncate(made / "a.npy")
    said = call("lint", made)
    assert (said.status, said.err) == (2, "")
    assert "✗ error: a: " in said.out
    assert str(made / "a.npy") in said.out


def test_json(call: Call) -> None:
    said = call("lint", REFERENCE, MAX, "--json")
    whole = json.loads(said.out)
    assert (said.status, whole["schema"], whole["dumps"]) == (0, "tensordiff.lint/1", [REFERENCE, MAX])
    [finding] = whole["findings"]
    assert (finding["level"], finding["where"]) == ("note", "candidate")


def test_both_sides_are_read_and_told_apart(call: Call, tmp_path: Path) -> None:
    whole = write(tmp_path / "r", {"a": numbers(4)})
    broken = write(tmp_path / "c", {"a": np.array([np.nan, 1, 2, 3])})
    found = json.loads(call("lint", whole, broken, "--json").out)["findings"]
    assert [finding["where"] for finding in found] == ["candidate: a"]


def test_names_that_do_not_pair(call: Call, tmp_path: Path) -> None:
    said = call("lint", write(tmp_path / "r", {"a": numbers(4)}), write(tmp_path / "c", {"b": numbers(4)}))
    assert said.status == 2
    assert "nothing could be paired" in said.out


def test_rules_are_used(call: Call, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\nmatch = '^b$'\nreplace = 'a'\n")
    made = write(tmp_path / "r", {"a": numbers(4)}), write(tmp_path / "c", {"b": numbers(4)})
    assert call("lint", *made, "--rules", rules).status == 0


def test_a_dump_that_is_not_there(call: Call) -> None:
    assert_one_sentence(call("lint", "nowhere"), "nowhere: no such file or folder")
