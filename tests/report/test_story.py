"""What a report tells: the sentence, culprits and victims, the closer look, order, orphans."""

from __future__ import annotations

import numpy as np
import pytest

from tensordiff.report.labels import label
from tensordiff.report.model import facts_of_both, tell
from tests.making import nudged, numbers
from tests.report.ground import compared, samples

A = numbers(3, 8)


def test_the_sentence_names_the_culprit_and_the_evidence() -> None:
    story = tell(*samples())
    assert story.sentence.startswith("layers.1.mlp.act_fn is the first place that is wrong by itself: rel_l2 8.3e-02")
    assert "even when given the reference's inputs" in story.sentence
    assert "at [0, 8, 67] of [1, 9, 128]" in story.sentence


def test_culprits_holders_and_victims() -> None:
    story = tell(*samples())
    names = [[label(row.pair) for row in rows] for rows in (story.culprits, story.holders, story.victims)]
    assert names[0] == ["layers.1.mlp.act_fn"]
    assert names[1][:2] == ["layers.1.mlp", "layers.1"]
    assert names[2] == ["layers.1.mlp.down_proj", "norm", "lm_head"]


def test_runs_that_agree() -> None:
    story = tell(*compared({"a": A, "b": A}, {"a": A, "b": nudged(A, 1e-7)}))
    assert story.sentence.startswith("The two runs agree in all of 2 pairs: the largest rel_l2 is 1.")
    assert story.sentence.endswith(", at b.")
    assert (story.culprits, story.victims, story.closes) == ((), (), ())


def test_drift_alone() -> None:
    story = tell(*compared({"a": A}, {"a": nudged(A, 1e-4)}))
    assert story.sentence.startswith("Nothing diverges, and 1 of 1 pair drift")


def test_nothing_paired() -> None:
    story = tell(*compared({"a": A}, {"b": numbers(5, 5)}))
    assert story.sentence == "It could not be told whether the two runs agree: nothing was paired."
    assert {orphan.name for orphan in story.orphans} == {"a", "b"}
    assert all(orphan.why for orphan in story.orphans)


def test_a_pair_that_cannot_be_read() -> None:
    story = tell(*compared({"a": A}, {"a": None}))
    assert "1 of 1 pair could not be compared, first a: lost.pt: is truncated" in story.sentence
    assert story.counts["unknown"] == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_candidate_that_is_not_finite(value: float) -> None:
    broken = A.copy()
    broken[1, 2] = value
    story = tell(*compared({"a": A}, {"a": broken}))
    assert story.verdict == "diverges"
    (close,) = story.closes
    assert close.worst[0].index == (1, 2)
    assert close.heat is not None
    assert not np.isfinite(close.heat.cells[1][2])


@pytest.mark.parametrize("array", [np.float32(2), np.zeros((0, 4), "f4"), np.zeros(3, "f4"), np.ones((2, 3, 4), "f4")])
def test_any_shape_can_be_looked_at_closely(array: np.ndarray) -> None:
    session, outcome = compared({"a": np.asarray(array)}, {"a": np.asarray(array)})
    (close,) = tell(session, outcome, outcome.rows).closes
    assert (close.heat is None) == (np.asarray(array).size == 0)


def test_a_selection_keeps_the_sentence_of_the_whole() -> None:
    session, outcome = samples()
    chosen = [row for row in outcome.rows if row.pair.name == "norm"]
    story = tell(session, outcome, chosen)
    assert story.sentence.startswith("layers.1.mlp.act_fn is the first")
    assert story.scope == "Shown here: 2 of 76 pairs, as selected."
    assert [close.row for close in story.closes] == chosen
    assert [given.pair.index for given in story.closes[1].inputs] == [chosen[0].pair.index]


def test_nothing_selected_is_no_error() -> None:
    session, outcome = samples()
    story = tell(session, outcome, [])
    assert (story.rows, story.closes) == ((), ())


def test_the_order_that_differs_is_shown() -> None:
    tensors = {"a": A, "b": A + 1, "c": A + 2}
    story = tell(*compared(tensors, dict(reversed(tensors.items()))))
    assert story.order.name == "differs"
    assert story.order.differences[0][:2] == (0, "a")


def test_facts_of_both_sides() -> None:
    ours = {"versions": {"torch": "2.13"}, "dtype": "float32", "flags": None}
    found = facts_of_both(ours, {"versions": {"torch": "2.12", "max": "26"}, "ids": [1, 2], "dtype": "float32"})
    assert [tuple(fact) for fact in found] == [
        ("versions.torch", "2.13", "2.12"), ("dtype", "float32", "float32"), ("versions.max", "", "26"),
        ("ids", "", "[1, 2]"),
    ]  # fmt: skip
    assert [fact.differs for fact in found] == [True, False, False, False]


def test_a_dump_that_knows_its_source_offers_a_repro() -> None:
    session, outcome = samples()
    assert tell(session, outcome).closes[0].repro == ""
    session.candidate.facts["source"] = "hf:some/model"  # type: ignore[index]
    session.candidate.facts["settings"] = {}  # type: ignore[index]
    (close,) = tell(session, outcome).closes
    assert close.repro.startswith("tensordiff replay ")
    assert close.repro.endswith("/reference model.model.layers.1.mlp.act_fn --source hf:some/model -o repro")
