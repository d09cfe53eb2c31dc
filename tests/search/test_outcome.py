"""What a whole comparison comes to."""

from __future__ import annotations

import pytest

from tensordiff.compare.judge.verdict import VerdictName
from tensordiff.search.outcome import Outcome
from tests.search.test_culprit import row


@pytest.mark.parametrize(
    ("verdicts", "verdict", "status"),
    [
        ([], "unknown", 2),
        (["agrees"], "agrees", 0),
        (["agrees", "drifts"], "drifts", 0),
        (["agrees", "unknown"], "unknown", 2),
        (["drifts", "unknown"], "unknown", 2),
        (["agrees", "diverges", "drifts", "unknown"], "diverges", 1),
    ],
)
def test_verdict_and_status(verdicts: list[VerdictName], verdict: str, status: int) -> None:
    outcome = Outcome(tuple(row(f"layer{i}", name) for i, name in enumerate(verdicts)))
    assert (outcome.verdict, outcome.exit_status) == (verdict, status)
    assert (outcome.culprit is None) == (verdict != "diverges")


def test_a_file_that_could_not_be_read_leaves_it_unsure() -> None:
    lost = ("b.safetensors: is truncated",)
    assert Outcome((row("a", "agrees"),), lost).exit_status == 2
    assert Outcome((row("a", "diverges"),), lost).exit_status == 1


def test_all_that_is_wrong_by_itself_is_listed_once_a_layer_the_first_first() -> None:
    names = ("b", "a.x-output_0", "a.x-output_1", "a", "c(2)", "c")
    outcome = Outcome(tuple(row(name, "diverges") for name in names))
    assert [found.pair.reference.name for found in outcome.culprits] == ["b", "a.x-output_0", "c(2)", "c"]
    assert outcome.culprit is outcome.culprits[0]
    assert Outcome((row("a", "agrees"),)).culprits == ()
