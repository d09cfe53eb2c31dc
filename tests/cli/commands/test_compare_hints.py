"""What kind of error the culprit shows, in the summary and in the JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import CANDIDATE, REFERENCE, Call
from tests.making import numbers, save


@pytest.fixture
def scaled(tmp_path: Path) -> tuple[Path, Path]:
    first, second = numbers(9, 64), numbers(9, 64, seed=1)
    reference = save(tmp_path / "r.safetensors", {"a-output": first, "b-output": second})
    return reference, save(tmp_path / "c.safetensors", {"a-output": first, "b-output": second / 8})


def test_the_summary_says_what_it_looks_like(call: Call, scaled: tuple[Path, Path]) -> None:
    out = call("compare", *scaled).out
    assert "  looks like: the reference times 0.125 = 1/sqrt(64); " in out
    assert out.count("looks like") == 1


@pytest.fixture
def unlike(tmp_path: Path) -> tuple[Path, Path]:
    """Two dumps of which nobody could say what is wrong: the numbers have nothing to do with each other."""
    reference = save(tmp_path / "r.safetensors", {"a-output": numbers(9, 64)})
    return reference, save(tmp_path / "c.safetensors", {"a-output": numbers(9, 64, seed=1)})


def test_no_idea_is_not_printed(call: Call, unlike: tuple[Path, Path]) -> None:
    assert "looks like" not in call("compare", *unlike).out


def test_the_samples_bug_is_told(call: Call) -> None:
    out = " ".join(call("compare", REFERENCE, CANDIDATE).out.split())
    assert "looks like: the candidate is gelu (tanh) of its input, the reference silu; " in out


def test_the_json_has_it_with_its_evidence(call: Call, scaled: tuple[Path, Path]) -> None:
    whole = json.loads(call("compare", *scaled, "--json").out)
    assert whole["culprit"]["hint"].keys() == {"kind", "sentence", "evidence"}
    assert whole["culprit"]["hint"]["kind"] == "scale"
    assert whole["culprit"]["hint"]["evidence"]["factor"] == 0.125
    assert [pair["hint"] for pair in whole["pairs"]] == [None, whole["culprit"]["hint"]]


def test_no_idea_is_null(call: Call, unlike: tuple[Path, Path]) -> None:
    assert json.loads(call("compare", *unlike, "--json").out)["culprit"]["hint"] is None


def test_a_name_in_a_sentence_is_no_markup(call: Call, tmp_path: Path) -> None:
    x, f = numbers(9, 64), numbers(9, 64, seed=1)
    name = "a\x1b[31m[/0]"
    reference = save(tmp_path / "r.safetensors", {f"{name}-input_0": x, f"{name}-output": x + f})
    candidate = save(tmp_path / "c.safetensors", {f"{name}-input_0": x, f"{name}-output": f})
    out = call("compare", reference, candidate).out
    assert "looks like: the reference less a" in out
    assert "\x1b[31m[/0]" not in out
