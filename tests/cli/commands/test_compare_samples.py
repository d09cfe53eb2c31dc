"""``tensordiff compare`` on the sample dumps, as a person runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import CANDIDATE, MAX, REFERENCE, Call, process
from tests.making import SAMPLES, numbers, save


def test_the_planted_bug_is_named() -> None:
    said = process("compare", REFERENCE, CANDIDATE)
    assert said.status == 1
    assert "verdict: diverges, first at layers.1.mlp.act_fn\n" in said.out
    assert "model.model.layers.1.mlp.act_fn-output" in said.out
    assert said.err == ""


def test_a_healthy_port_agrees() -> None:
    said = process("compare", REFERENCE, MAX)
    assert said.status == 0
    assert said.out.endswith("verdict: agrees\n")
    assert said.err == ""


def test_two_paths_without_a_command_are_compared() -> None:
    said = process(REFERENCE, CANDIDATE, "--quiet")
    assert said.status == 1
    assert "first at layers.1.mlp.act_fn" in said.out


def test_rows_come_in_execution_order(call: Call) -> None:
    lines = call("compare", REFERENCE, CANDIDATE).out.splitlines()
    rows = [line.split() for line in lines if line.startswith(("✓  ", "~  ", "✗  "))]
    assert [int(row[1]) for row in rows] == list(range(76))
    assert rows[57][0] == "✗"
    assert rows[57][2] == "layers.1.mlp.act_fn"


def test_faults_are_only_the_rows_that_do_not_agree(call: Call) -> None:
    out = call("compare", REFERENCE, CANDIDATE, "--faults").out
    rows = [line for line in out.splitlines() if line[8:].startswith(("layers", "norm", "lm_head", "model"))]
    assert len(rows) == 11
    assert not any(row.startswith("✓") for row in rows)


def test_quiet_prints_no_rows_and_no_headings(call: Call) -> None:
    out = call("compare", REFERENCE, CANDIDATE, "-q").out
    assert "rel_l2   " not in out
    assert "layers.0" not in out
    assert "✓ 65 agrees  ~ 8 drifts  ✗ 3 diverges" in out


def test_sides_may_be_swapped(call: Call) -> None:
    assert call("compare", MAX, REFERENCE, "-q").status == 0


def test_orphans_are_named_and_counted(call: Call) -> None:
    out = call("compare", REFERENCE, MAX, "-q").out
    assert "not paired on the reference: model.model.rotary_emb-input_0, " in out
    assert " and 28 more\n" in out


def test_demo_finds_the_bug_and_that_is_success() -> None:
    said = process("demo")
    assert said.status == 0
    assert "first at layers.1.mlp.act_fn" in said.out
    assert "even when given the reference's inputs" in said.out


def test_demo_without_the_bug_is_no_success(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensordiff.session.samples.sample", lambda _: SAMPLES / "reference")
    assert call("demo").status == 2


def test_more_than_one_culprit_is_listed_shortly(call: Call, tmp_path: Path) -> None:
    """Branches that do not meet: neither explains the other."""
    names = [f"branch{k}-{port}" for k in range(7) for port in ("input_0", "output")]
    reference = {name: numbers(9, 64, seed=k) for k, name in enumerate(names)}
    wrong = {name: numbers(9, 64, seed=99) for name in names if name.endswith("output")}
    sides = save(tmp_path / "r.safetensors", reference), save(tmp_path / "c.safetensors", reference | wrong)
    out = call("compare", *sides).out
    assert "verdict: diverges, first at branch0\n" in out
    assert "  also wrong by itself: branch1, branch2, branch3, branch4 and 2 more\n" in out


def test_amplification_is_shown_where_there_is_room(call: Call) -> None:
    assert "amplif." in call("compare", REFERENCE, CANDIDATE).out
