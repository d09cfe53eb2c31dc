"""What answers a search: a verdict that reads only what it is asked about, or anything else that can mark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from tensordiff.compare.comparer import Comparer
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.dump.dtypes import Array
from tensordiff.search.bisect import Bisect, Mark
from tensordiff.search.bisect_outcome import BisectOutcome, check_neighbours, search_and_check
from tensordiff.search.oracle import Answer, RowsByPosition, VerdictOracle, search
from tests.making import MemoryTensor, nudged, numbers, pairs

A = numbers(16, 16)


def last(states: Iterator[Bisect]) -> Bisect:
    return list(states)[-1]


def oracle(*errors: float | None, limits: Limits | None = None, in_eight_bits: Sequence[str] = ()) -> VerdictOracle:
    """Over places with these errors; None cannot be read."""
    reference: dict[str, Array | None] = {f"layers.{k}": A for k in range(len(errors))}
    candidate = {f"layers.{k}": None if e is None else nudged(A, e) for k, e in enumerate(errors)}
    comparer = Comparer(limits or Limits(), in_eight_bits=in_eight_bits)
    return VerdictOracle.over(comparer, pairs(reference, candidate))


@pytest.mark.parametrize(
    ("error", "mark", "verdict"),
    [(0.0, "good", "agrees"), (1e-6, "good", "agrees"), (1e-4, "bad", "drifts"), (0.1, "bad", "diverges")],
)
def test_marks_by_the_floor(error: float, mark: Mark, verdict: str) -> None:
    made = oracle(error)
    assert (made.mark(0), made.row(0).verdict.name) == (mark, verdict)


def test_rows_of_the_first_pairs_are_not_measured_again() -> None:
    made = oracle(0.0, 0.1, 0.0, 0.1)
    rows = [made.row(at) for at in range(4)]
    known = replace(oracle(0.0, 0.1, 0.0, 0.1), rows=RowsByPosition(rows[:3]))
    assert known.row(1) is rows[1] and 3 not in known.rows
    assert known.row(3).verdict == rows[3].verdict
    assert (list(known.rows), len(known.rows)) == ([0, 1, 2, 3], 4)
    known.rows[0] = rows[1]
    assert (known.row(0) is rows[1], len(known.rows)) == (True, 4)


def test_what_cannot_be_read_is_skipped() -> None:
    made = oracle(0.0, None, 0.1)
    assert [made.mark(k) for k in range(3)] == ["good", "skip", "bad"]


def test_nan_is_bad() -> None:
    made = VerdictOracle.over(Comparer(), pairs({"a": A}, {"a": A * float("nan")}))
    assert made.mark(0) == "bad"


@pytest.mark.parametrize(
    ("limits", "mark"),
    [(Limits(threshold=0.5), "good"), (Limits(threshold=0.01), "bad"), (Limits(Tolerance(10.0, 0.0)), "good")],
)
def test_the_user_s_limits_decide(limits: Limits, mark: Mark) -> None:
    assert oracle(0.1, limits=limits).mark(0) == mark


def test_a_place_is_judged_by_itself() -> None:
    """Whatever came before: the second would drift in a scan."""
    assert oracle(0.1, 0.1).row(1).verdict.name == "diverges"


ROUNDED = ("layers.0",)
ADDED_UP = [0.01 * 1.2**k for k in range(16)]
"""What rounding to 8 bits in every layer comes to: 15 % at the end."""


def test_what_rounding_to_8_bits_explains_is_good_wherever_it_was_rounded() -> None:
    made = oracle(0.01, 0.02, 0.04, 0.25, 0.25, in_eight_bits=ROUNDED)
    assert [made.mark(k) for k in range(5)] == ["good", "good", "good", "bad", "bad"]
    assert made.unproven == ""


def test_errors_of_8_bits_that_added_up_prove_nothing() -> None:
    made = oracle(*ADDED_UP, in_eight_bits=ROUNDED)
    done = last(search_and_check(made.start(), made))
    outcome = BisectOutcome(done, made, check_neighbours(done, made))
    assert (done.any_bad, outcome.verdict, outcome.first_bad) == (True, "unknown", None)
    assert "--threshold X" in outcome.unproven
    given = oracle(*ADDED_UP, in_eight_bits=ROUNDED, limits=Limits(threshold=0.1))
    assert (last(search(given.start(), given)).first_bad, given.unproven) == (13, "")


def test_outputs_are_searched() -> None:
    tensors = {"a-input_0": A, "a-output": A, "b-input_0": A, "b-output_0": A, "b-output_1": A}
    made = VerdictOracle.over(Comparer(), pairs(tensors, tensors))
    assert [(place.number, place.name) for place in made.start().points] == [(1, "a"), (3, "b"), (4, "b output_1")]


def test_inputs_are_searched_where_there_are_no_outputs() -> None:
    tensors = {"a-input_0": A, "b-input_0": A}
    made = VerdictOracle.over(Comparer(), pairs(tensors, tensors))
    assert [place.name for place in made.start().points] == ["a input_0", "b input_0"]


def test_only_what_is_probed_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made = oracle(*[0.0] * 700, *[0.1] * 300)
    reads: list[int] = []

    def noted(held: MemoryTensor) -> Array:
        reads.append(id(held))
        return held.array

    monkeypatch.setattr(MemoryTensor, "read", noted)
    done = last(search(made.start(), made))
    assert done.first_bad == 700
    assert len(done.marks) <= 10
    assert len(reads) == len(set(reads)) == 2 * len(done.marks)


def test_a_pair_is_read_once() -> None:
    made = oracle(0.1)
    assert made.row(0) is made.row(0)


def test_a_search_around_what_cannot_be_read() -> None:
    made = oracle(0.0, 0.0, None, None, 0.1, 0.1)
    done = last(search(made.start(), made))
    assert (done.first_bad, done.suspects) == (None, range(2, 5))


@dataclass
class Scripted:
    """Says what it was told to."""

    answers: list[Answer]

    def ask(self, bisect: Bisect) -> Answer | None:
        return self.answers.pop(0) if self.answers else None


def test_an_oracle_that_stops() -> None:
    made = oracle(*[0.0] * 9)
    states = list(search(made.start(), Scripted(["good", "undo", "bad"])))
    assert [len(state.marks) for state in states] == [1, 0, 1]
    assert (states[-1].bad_from, states[-1].is_done) == (4, False)
    assert made.rows == {}


def test_nobody_is_asked_when_it_is_done() -> None:
    script = Scripted(["bad"] * 9)
    assert last(search(oracle(0.0).start(), script)).first_bad == 0
    assert len(script.answers) == 8
