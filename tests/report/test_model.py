"""What a report tells: the sentence, culprits and victims, the closer look, order, orphans."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensordiff.capture.job import Job, Source
from tensordiff.capture.provenance import sign
from tensordiff.capture.settings import Settings
from tensordiff.report.labels import label
from tensordiff.report.model import build_report, run_facts
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.making import nudged, numbers, write
from tests.processes import run
from tests.report.comparisons import compared, samples

A = numbers(3, 8)


def test_the_sentence_names_the_culprit_and_the_evidence() -> None:
    model = build_report(*samples())
    assert model.sentence.startswith("layers.1.mlp.act_fn is the first place that is wrong by itself: rel_l2 8.3e-02")
    assert "even when given the reference's inputs" in model.sentence
    assert "at [0, 8, 67] of [1, 9, 128]" in model.sentence


def test_culprits_holders_and_victims() -> None:
    model = build_report(*samples())
    names = [[label(row.pair) for row in rows] for rows in (model.culprit_rows, model.enclosing, model.victims)]
    assert names[0] == ["layers.1.mlp.act_fn"]
    assert names[1][:2] == ["layers.1.mlp", "layers.1"]
    assert names[2] == ["layers.1.mlp.down_proj", "norm", "lm_head"]


def test_runs_that_agree() -> None:
    model = build_report(*compared({"a": A, "b": A}, {"a": A, "b": nudged(A, 1e-7)}))
    assert model.sentence.startswith("The two runs agree in all of 2 pairs: the largest rel_l2 is 1.")
    assert model.sentence.endswith(", at b.")
    assert (model.culprit_rows, model.victims, model.details) == ((), (), ())


def test_drift_alone() -> None:
    drifting = {"a": nudged(A, 5e-6), "b": nudged(A, 1e-5), "c": nudged(A, 3e-5)}
    model = build_report(*compared({"a": A, "b": A, "c": A}, drifting))
    assert model.sentence.startswith("Nothing diverges, and 1 of 3 pairs drift")


def test_drift_that_quantized_weights_explain() -> None:
    drifting = {"a": nudged(A, 5e-6), "b": nudged(A, 1e-5), "c": nudged(A, 3e-5)}
    session, outcome = compared({"a": A, "b": A, "c": A}, drifting)
    model = build_report(session, replace(outcome, taken_weights="4-bit weights (Q4_K)"))
    assert model.sentence.startswith("Nothing diverges, as its 4-bit weights (Q4_K) explain, and 1 of 3 pairs drift")


def test_a_first_output_above_rounding_is_not_drift() -> None:
    model = build_report(*compared({"a": A}, {"a": nudged(A, 1e-4)}))
    assert model.sentence.startswith("Whether the two runs agree is unknown: a, the first output")


def test_nothing_paired() -> None:
    model = build_report(*compared({"a": A}, {"b": numbers(5, 5)}))
    assert model.sentence == "Whether the two runs agree is unknown: nothing was paired."
    assert {orphan.name for orphan in model.orphans} == {"a", "b"}
    assert all(orphan.why for orphan in model.orphans)


def test_a_pair_that_cannot_be_read() -> None:
    model = build_report(*compared({"a": A}, {"a": None}))
    assert "1 of 1 pair could not be compared, first a: lost.pt: is truncated" in model.sentence
    assert model.counts["unknown"] == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_candidate_that_is_not_finite(value: float) -> None:
    broken = A.copy()
    broken[1, 2] = value
    model = build_report(*compared({"a": A}, {"a": broken}))
    assert model.verdict == "diverges"
    (close,) = model.details
    assert close.worst[0].index == (1, 2)
    assert close.heat is not None
    assert not np.isfinite(close.heat.cells[1][2])


@pytest.mark.parametrize("array", [np.float32(2), np.zeros((0, 4), "f4"), np.zeros(3, "f4"), np.ones((2, 3, 4), "f4")])
def test_any_shape_can_be_looked_at_closely(array: np.ndarray) -> None:
    session, outcome = compared({"a": np.asarray(array)}, {"a": np.asarray(array)})
    (close,) = build_report(session, outcome, outcome.rows).details
    assert (close.heat is None) == (np.asarray(array).size == 0)


def test_a_selection_keeps_the_sentence_of_the_whole() -> None:
    session, outcome = samples()
    chosen = [row for row in outcome.rows if row.pair.name == "norm"]
    model = build_report(session, outcome, chosen)
    assert model.sentence.startswith("layers.1.mlp.act_fn is the first")
    assert model.scope == "Shown here: 2 of 76 pairs, as selected."
    assert [close.row for close in model.details] == chosen
    assert [given.pair.index for given in model.details[1].inputs] == [chosen[0].pair.index]


def test_nothing_selected_is_no_error() -> None:
    session, outcome = samples()
    model = build_report(session, outcome, [])
    assert (model.rows, model.details) == ((), ())


def test_the_order_that_differs_is_shown() -> None:
    tensors = {"a": A, "b": A + 1, "c": A + 2}
    model = build_report(*compared(tensors, dict(reversed(tensors.items()))))
    assert model.order.name == "differs"
    assert model.order.differences[0][:2] == (0, "a")


def test_facts_of_both_sides() -> None:
    ours = {"versions": {"torch": "2.13"}, "dtype": "float32", "flags": None}
    found = run_facts(ours, {"versions": {"torch": "2.12", "max": "26"}, "ids": [1, 2], "dtype": "float32"})
    assert [tuple(fact) for fact in found] == [
        ("versions.torch", "2.13", "2.12"), ("dtype", "float32", "float32"), ("versions.max", "", "26"),
        ("ids", "", "[1, 2]"),
    ]  # fmt: skip
    assert [fact.differs for fact in found] == [True, False, False, False]


def test_a_dump_that_knows_its_source_offers_a_repro() -> None:
    session, outcome = samples()
    assert build_report(session, outcome).details[0].repro == ""
    signature = sign(Job(Source("hf", "some/model"), Settings(), ""))
    session.candidate.facts.update(source="hf:some/model", settings={}, signature=signature)  # type: ignore[attr-defined]
    (close,) = build_report(session, outcome).details
    assert close.repro.startswith("tensordiff replay ")
    assert close.repro.startswith("tensordiff replay --source hf:some/model -o repro /")
    assert close.repro.endswith("/reference model.model.layers.1.mlp.act_fn")


def test_what_a_stranger_s_dump_names_does_not_come_to_stand_in_a_command() -> None:
    session, outcome = samples()
    session.candidate.facts.update(source="hf:evil/model", settings={})  # type: ignore[attr-defined]
    (close,) = build_report(session, outcome).details
    assert close.repro == ""


@pytest.mark.parametrize("layer", ["-o", "--source=py:evil.py:f", "a'; touch owned; '", "a\ntouch owned", "\x1b[31m"])
def test_a_repro_is_about_a_layer_and_nothing_else_whatever_it_is_called(layer: str, tmp_path: Path) -> None:
    signature = sign(Job(Source("hf", "some/model"), Settings(), ""))
    made: dict[str, Any] = {"source": "hf:some/model", "settings": {}, "signature": signature}
    ours, theirs = (
        write(tmp_path / name, {f"{layer}-output": numbers(4, seed=k)}, **made) for k, name in enumerate("rc")
    )
    session = Session.open(Request(ours, theirs))
    (close,) = build_report(session, session.outcome(session.comparer.rows(session.pairs))).details
    assert close.repro.isprintable()
    said = run(["bash", "-c", f"tensordiff() {{ printf '%s\\0' \"$@\"; }}; {close.repro}"], check=True, cwd=tmp_path)
    dashes = ["--"] * layer.startswith("-")
    wanted = ["replay", "--source", "hf:some/model", "-o", "repro", *dashes, str(ours), layer]
    assert said.stdout.split("\0")[:-1] == wanted
    assert not (tmp_path / "owned").exists()


def test_how_modules_were_called_is_no_setting() -> None:
    facts = {"dtype": "float32", "calls": {"of": {"model#0#1": 3}}, "signature": "x"}
    assert [fact.name for fact in run_facts(facts, facts)] == ["dtype"]


def test_notes_and_words() -> None:
    session, outcome = samples()
    row = outcome.rows[3]
    model = build_report(session, outcome, notes={row.pair.name: "odd\n remark", "nobody": "x"})
    assert model.notes == ((row.pair.name, r"odd\n remark"),)
    assert [word for word, _ in model.glossary] == ["culprit", "victim", "rel_l2", "coverage", "injected"]
    for name in ("markdown", "text", "html"):
        page = import_module(f"tensordiff.report.{name}").render(model)
        assert page.count("remark") == 1 and "look there first" in page


def test_layers_of_other_names_have_no_repro(tmp_path: Path) -> None:
    """On the candidate's own inputs its layer would be compared with itself."""
    a = numbers(4, 8)
    ours = write(tmp_path / "ours", {"a.act": a})
    session = Session.open(Request(ours, write(tmp_path / "theirs", {"model.a.act": 2 * a})))
    signature = sign(Job(Source("hf", "some/model"), Settings(), ""))
    session.candidate.facts.update(source="hf:some/model", settings={}, signature=signature)  # type: ignore[attr-defined]
    outcome = session.outcome(session.rows())
    assert [detail.repro for detail in build_report(session, outcome).details] == [""]
