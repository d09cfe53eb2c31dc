"""``tensordiff lint``: its status and what it prints; what it finds is tested beside the checks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from tests.cli.command import CANDIDATE, MAX, REFERENCE, Call, assert_one_sentence
from tests.making import numbers, save, save_npy, truncate, write


def test_a_healthy_dump(call: Call) -> None:
    assert call("lint", CANDIDATE) == (0, "sanity checks: passed\n", "")


def test_a_note_is_no_failure(call: Call) -> None:
    said = call("lint", MAX)
    assert said.status == 0
    assert said.out.startswith("· note: a max dump does not say in which order its layers ran\n    why it matters: ")
    assert said.out.endswith("1 found\n")


def test_a_warning_is_status_1(call: Call, tmp_path: Path) -> None:
    said = call("lint", save(tmp_path / "d.safetensors", {"a": np.zeros((4, 4))}))
    assert said.status == 1
    assert "! warning: a: 1 output is all zero\n" in said.out


def test_an_error_is_status_2(call: Call, tmp_path: Path) -> None:
    made = save_npy(tmp_path, {"a": numbers(64)})
    truncate(made / "a.npy")
    said = call("lint", made)
    assert (said.status, said.err) == (2, "")
    assert "✗ error: a: " in said.out
    assert str(made / "a.npy") in said.out


def test_what_was_not_read_is_status_2_as_it_is_for_compare(call: Call, tmp_path: Path) -> None:
    made = save_npy(tmp_path / "d", {"a": numbers(64)})
    assert (call("lint", made).status, call("inspect", made).status, call("compare", made, made).status) == (0, 0, 0)
    save(made / "layers" / "b.safetensors", {"b": numbers(64)})
    found = [call("lint", made), call("lint", made, made), call("inspect", made), call("compare", made, made)]
    assert [said.status for said in found] == [2, 2, 2, 2]
    assert all("holds 1 tensor file that was not read (layers/b.safetensors)" in said.out for said in found)


def test_many_that_were_not_read_are_counted_and_few_shown(call: Call, tmp_path: Path) -> None:
    made = save_npy(tmp_path / "d", {"a": numbers(64)})
    for i in range(300):
        (made / f"{i}.gguf").touch()
    said = call("compare", made, made)
    assert (said.status, said.out.count(".gguf")) == (2, 10)
    assert said.out.count("295 more files were left out") == 2
    for suffix in ("txt", "html"):
        assert call("report", made, made, "-o", tmp_path / f"r.{suffix}").status == 2
        text = (tmp_path / f"r.{suffix}").read_text()
        assert text.count(".gguf") < 60
        assert "580 more files and folders" in text


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


# --- what compare says of it ----------------------------------------------------------------------

ZERO = {"layers.0-output": numbers(4, 4), "layers.1-output": np.zeros((4, 4), np.float32)}


def test_compare_says_at_the_top_what_it_has_looked_at(call: Call, tmp_path: Path) -> None:
    said = call("compare", REFERENCE, shutil.copytree(REFERENCE, tmp_path / "again"))
    assert "\nchecks     headers, token ids, embedding: passed\n\n" in said.out
    assert "\nchecks of the measured values: passed\nverdict: agrees\n" in said.out


def test_compare_says_at_the_end_what_values_show(call: Call, tmp_path: Path) -> None:
    said = call("compare", write(tmp_path / "r", ZERO), write(tmp_path / "c", ZERO))
    top, _, end = said.out.partition("\nchecks of the measured values\n")
    assert "checks     headers, token ids, embedding: passed\n" in top
    assert end.startswith("  ! both sides: layers.1-output: 1 output is all zero; a buffer that was never written")
    assert end.endswith("\nverdict: unknown\n") and "has no value that could be compared" in said.err


def test_compare_has_both_in_its_json(call: Call, tmp_path: Path) -> None:
    reference = save(tmp_path / "r.safetensors", ZERO, ordered=False)
    candidate = write(tmp_path / "c", dict.fromkeys(ZERO, numbers(4, 4)))
    found = json.loads(call("compare", reference, candidate, "--json").out)["lint"]
    assert [(finding["level"], finding["where"]) for finding in found] == [
        ("note", "reference"), ("warning", "reference: layers.1-output"), ("warning", "candidate: layers.1-output"),
    ]  # fmt: skip
    assert [finding["what"] for finding in found[1:]] == ["1 output is all zero", "is byte for byte layers.0-output"]


def test_compare_finds_what_lint_finds(call: Call, tmp_path: Path) -> None:
    one, nan = numbers(4, 4), np.full((4, 4), np.nan, np.float32)
    tensors = {**ZERO, "layers.2-output": one, "layers.2-input_0": 2 * one[::-1], "layers.3-output": nan}
    made, again = write(tmp_path / "r", tensors), write(tmp_path / "c", tensors)
    by_lint = json.loads(call("lint", made, "--json").out)["findings"]
    by_compare = json.loads(call("compare", made, again, "--json").out)["lint"]
    assert len(by_lint) == 4
    assert [finding["what"] for finding in by_compare] == [finding["what"] for finding in by_lint]


def test_a_dump_that_is_not_there(call: Call) -> None:
    assert_one_sentence(call("lint", "nowhere"), "nowhere: no such file or folder")
