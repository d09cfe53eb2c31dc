"""``tensordiff inspect``: what is in a dump."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.command import CANDIDATE, MAX, REFERENCE, Call, assert_one_sentence
from tests.making import numbers, save, save_npy, truncate, write


def entries(call: Call, *args: object) -> list[dict[str, Any]]:
    said = call("inspect", *args, "--json")
    assert said.out.count("\n") == 1
    return list(json.loads(said.out)["entries"])


def test_one_line_an_entry(call: Call) -> None:
    said = call("inspect", CANDIDATE)
    assert (said.status, said.err) == (0, "")
    first, *lines, last = said.out.splitlines()
    assert first == f"{CANDIDATE}  tensordiff, 76 entries, in execution order"
    assert len(lines) == 76
    assert lines[1].split() == ["model.model.embed_tokens-output", "float32", "1×9×64", "2.3", "kB"]
    assert last.startswith("76 entries, ")


def test_a_dump_without_order_says_so(call: Call) -> None:
    assert "order unknown" in call("inspect", MAX).out.splitlines()[0]


def test_json_has_every_entry(call: Call) -> None:
    whole = json.loads(call("inspect", REFERENCE, "--json").out)
    assert whole["schema"] == "tensordiff.inspect/1"
    assert (whole["format"], whole["ordered"], whole["interrupted"]) == ("torch-hook", True, False)
    assert whole["entries"][1] == {
        "name": "model.model.embed_tokens-output", "layer": "model.model.embed_tokens", "port": "output",
        "call": 1, "step": 0, "ranks": None, "shape": [1, 9, 64], "dtype": "float32", "bytes": 2304, "problem": None,
    }  # fmt: skip


def test_only_and_step(call: Call, tmp_path: Path) -> None:
    for step in (0, 1):
        write(tmp_path / str(step), {"a": numbers(3), "b": numbers(3)}, step=step)
    assert [(e["name"], e["step"]) for e in entries(call, tmp_path, "--only", "a")] == [("a", 0), ("a", 1)]
    assert [(e["name"], e["step"]) for e in entries(call, tmp_path, "--step", "1")] == [("a", 1), ("b", 1)]


def test_steps_are_shown_where_there_are_some(call: Call, tmp_path: Path) -> None:
    for step in (0, 1):
        write(tmp_path / str(step), {"a": numbers(3)}, step=step)
    assert [line.split()[:2] for line in call("inspect", tmp_path).out.splitlines()[1:3]] == [["0", "a"], ["1", "a"]]


def test_only_must_be_a_regular_expression(call: Call) -> None:
    assert_one_sentence(call("inspect", CANDIDATE, "--only", "("), "--only '('", "not a regular expression")


def test_statistics_are_read_on_request_only(call: Call, tmp_path: Path) -> None:
    made = save(tmp_path / "d.safetensors", {"a": np.array([1.0, -3.0, np.nan, np.inf])})
    assert "stats" not in entries(call, made)[0]
    [entry] = entries(call, made, "--stats")
    assert entry["stats"] == {
        "minimum": -3.0, "maximum": 1.0, "mean": -1.0, "rms": pytest.approx(5**0.5), "nan": 1, "inf": 1,
    }  # fmt: skip
    line = call("inspect", made, "--stats").out.splitlines()[-2]
    assert "min -3.00e+00 max  1.00e+00 mean -1.00e+00 rms  2.24e+00  nan 1 inf 1" in line


def test_statistics_of_nothing(call: Call, tmp_path: Path) -> None:
    made = save(tmp_path / "d.safetensors", {"a": np.zeros((0, 3))})
    assert "min         - max         -" in call("inspect", made, "--stats").out


def test_a_scalar(call: Call, tmp_path: Path) -> None:
    made = save(tmp_path / "d.safetensors", {"a": np.array(3, np.float32)})
    assert call("inspect", made).out.splitlines()[-2].split() == ["a", "float32", "scalar", "4", "B"]


def test_an_entry_that_cannot_be_read_is_listed_with_the_reason(call: Call, tmp_path: Path) -> None:
    made = save_npy(tmp_path, {"a": numbers(64), "b": numbers(64)})
    truncate(made / "a.npy")
    said = call("inspect", made)
    assert said.status == 2
    assert f"a ? {made / 'a.npy'}: it is truncated" in " ".join(said.out.split())
    assert "b float32 64" in " ".join(said.out.split())
    broken, whole = entries(call, made)
    assert (broken["shape"], broken["dtype"], broken["bytes"]) == (None, None, None)
    assert "is truncated" in broken["problem"]
    assert whole["problem"] is None


def test_what_was_left_out_is_listed(call: Call, tmp_path: Path) -> None:
    save(tmp_path / "a.safetensors", {"a": numbers(64)})
    truncate(save(tmp_path / "b.safetensors", {"b": numbers(64)}))
    said = call("inspect", tmp_path)
    assert said.status == 2
    assert "✗ error: b.safetensors " in said.out
    as_json = call("inspect", tmp_path, "--json")
    assert (as_json.status, [p["file"] for p in json.loads(as_json.out)["problems"]]) == (2, ["b.safetensors"])
