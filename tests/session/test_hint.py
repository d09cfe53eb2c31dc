"""The hint for a row: from the pair, and from what stands around it in the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.making import SAMPLES, Tensors, numbers, save


def opened(tmp_path: Path, reference: Tensors, candidate: Tensors) -> Session:
    sides = save(tmp_path / "r.safetensors", reference), save(tmp_path / "c.safetensors", candidate)
    return Session.open(Request(*sides))


def test_a_lost_residual_is_named_from_the_dump(tmp_path: Path) -> None:
    x, f = numbers(1, 9, 64), numbers(1, 9, 64, seed=1)
    session = opened(
        tmp_path, {"a-input_0": x, "a.f-output": f, "a-output": x + f}, {"a-input_0": x, "a.f-output": f, "a-output": f}
    )
    culprit = session.outcome(session.rows()).culprit
    assert culprit is not None
    found = session.hint(culprit)
    assert found is not None
    assert (found.kind, found.evidence["tensor"]) == ("residual_lost", "a-input_0")


def test_shapes_that_a_view_reconciles(tmp_path: Path) -> None:
    x = numbers(1, 9, 64)
    session = opened(tmp_path, {"a-output": x}, {"a-output": x[0] / 8})
    [row] = session.rows()
    found = session.hint(row)
    assert found is not None
    assert found.kind == "scale"


def test_a_row_that_could_not_be_measured_has_none(tmp_path: Path) -> None:
    session = opened(tmp_path, {"a-output": numbers(2, 3)}, {"a-output": numbers(3, 2)})
    [row] = session.rows()
    assert session.hint(row) is None


@pytest.mark.parametrize("candidate", ["candidate", "candidate_injected", "max", "golden"])
def test_no_row_of_the_samples_gets_a_wrong_hint(candidate: str) -> None:
    """The planted bug is another activation, and is told so; all else is rounding, and the bug's victims."""
    session = Session.open(Request(SAMPLES / "reference", SAMPLES / candidate))
    found = {row.pair.reference.name: hint.kind for row in session.rows() if (hint := session.hint(row))}
    bug = found.pop("model.model.layers.1.mlp.act_fn-output", None)
    assert bug == ("activation" if candidate.startswith("candidate") else bug)
    assert {*found.values(), *({bug} if bug != "activation" else ())} <= {"last_bits", "rounded", None}


def test_nothing_is_read_for_rows_that_nobody_asks_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("tensordiff.session.session.hint_for_row", lambda *given: asked.append(given))
    session = opened(tmp_path, {"a-output": numbers(9, 8)}, {"a-output": numbers(9, 8, seed=1)})
    session.outcome(session.rows())
    assert asked == []
