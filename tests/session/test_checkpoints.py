"""Two checkpoints in a session: they can be paired there, and nothing judges them but ``weights``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensordiff.errors import AlignError
from tensordiff.session.from_arrays import session_of
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.session.weights import compare_checkpoints, open_checkpoints
from tests.making import save
from tests.weights.making import Weights, llama


def swapped() -> tuple[Weights, Weights]:
    weights = llama(4)
    one, two = (f"model.layers.1.mlp.{name}_proj.weight" for name in ("gate", "up"))
    return weights, weights | {one: weights[two], two: weights[one]}


def saved(tmp_path: Path) -> tuple[Path, Path]:
    ref, cand = swapped()
    return save(tmp_path / "a.safetensors", ref), save(tmp_path / "b.safetensors", cand)


def test_a_session_pairs_them_and_refuses_to_judge(tmp_path: Path) -> None:
    session = Session.open(Request(*saved(tmp_path)))
    assert session.are_checkpoints and len(session.pairs) == 30
    with pytest.raises(AlignError, match=r"both sides are checkpoints, not runs; .* tensordiff weights .*a\.saf"):
        session.rows()


def test_the_rules_and_limits_of_a_request_hold(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[[tolerance]]\nmatch = 'mlp'\nrel_l2 = 10.0\n")
    request = Request(*saved(tmp_path), rules=rules, only="mlp")
    sides = open_checkpoints(request)
    assert sides is not None
    comparison = compare_checkpoints(request, *sides)
    outcome = comparison.outcome(comparison.rows())
    assert outcome.verdict == "agrees" and len(outcome.rows) == 9


def test_arrays_in_memory_are_what_they_are_given_as() -> None:
    """``assert_agrees(one.state_dict(), other.state_dict())``: no parameter comes before another."""
    session = session_of(*swapped())
    wrong = [row for row in session.rows() if row.verdict.name != "agrees"]
    assert {row.pair.name.rpartition("mlp.")[2] for row in wrong} == {"gate_proj.weight", "up_proj.weight"}
    assert all(row.verdict.name == "diverges" for row in wrong)
    assert not any("its input" in row.verdict.why or "may lie between" in row.verdict.why for row in wrong)
    hint = session.hint(wrong[0])
    assert hint is not None and hint.sentence == "swapped with layers.1.mlp.up_proj.weight"
