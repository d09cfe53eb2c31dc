"""The neighbours of an answer: what does not fit is found, told, and where it lies before the answer, taken up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordiff.compare.comparer import Comparer
from tensordiff.dump.dtypes import Array
from tensordiff.search.bisect import Bisect
from tensordiff.search.bisect_outcome import BisectOutcome, NeighbourCheck, check_neighbours, search_and_check
from tensordiff.search.oracle import VerdictOracle
from tests.making import nudged, numbers, pairs

A = numbers(4, 4)
CANDIDATES: dict[str, Array | None] = {".": A, "~": nudged(A, 1e-4), "x": -A, "?": None}


def oracle(profile: str) -> VerdictOracle:
    """``.`` agrees, ``~`` drifts, ``x`` diverges, ``?`` cannot be read."""
    reference: dict[str, Array | None] = {f"layers.{k}": A for k in range(len(profile))}
    candidate = {f"layers.{k}": CANDIDATES[letter] for k, letter in enumerate(profile)}
    return VerdictOracle.over(Comparer(), pairs(reference, candidate))


def searched(made: VerdictOracle, start: Bisect | None = None) -> tuple[Bisect, NeighbourCheck]:
    bisect = made.start() if start is None else start
    for state in search_and_check(bisect, made):
        bisect = state
    return bisect, check_neighbours(bisect, made)


@pytest.mark.parametrize(
    ("profile", "first_bad", "is_monotone"),
    [
        ("......xxxxxx", 6, True),
        ("xxxxxx", 0, True),
        (".....x", 5, True),
        ("......", None, True),
        ("x", 0, True),
        ("......xxxxx.", 6, False),  # the end is right again
        ("......x.xxxx", 6, False),  # a branch beside the culprit
        ("....x.xxxxxx", 4, False),  # the search steps on the branch, and its neighbour shows the culprit
        ("...x........", 3, False),  # only one is bad, and a sample meets it
        ("??????", None, None),
    ],
)
def test_profiles(profile: str, first_bad: int | None, is_monotone: bool | None) -> None:
    bisect, seen = searched(oracle(profile))
    assert (bisect.first_bad, seen.is_monotone) == (first_bad, is_monotone)


def test_what_does_not_fit_is_named() -> None:
    _, seen = searched(oracle("......x.xxxx"))
    assert (seen.good_again, seen.earlier) == ((7,), None)


def test_few_are_looked_at_beyond_the_search() -> None:
    made = oracle("." * 600 + "x" * 400)
    bisect, seen = searched(made)
    assert len(seen.checked) <= 4
    assert len(made.rows) == len(bisect.marks) + len(seen.checked)


@pytest.mark.parametrize("at", [0, 1, 7, 13, 22, 30])
def test_one_wrong_place_among_right_ones_is_not_missed(at: int) -> None:
    """The search meets only right ones, and so do its samples."""
    made = oracle("." * at + "x" + "." * (30 - at))
    bisect, seen = searched(made)
    assert BisectOutcome(bisect, made, seen).exit_status == 1 and bisect.first_bad == at


def test_nor_is_one_that_could_not_be_read() -> None:
    made = oracle("......?......................")
    outcome = BisectOutcome(*(searched(made)[0], made, searched(made)[1]))
    assert (outcome.verdict, outcome.exit_status) == ("unknown", 2)
    assert "layers.6 could not be judged" in outcome.reasons[0]


def test_nothing_is_said_to_be_bad_only_after_all_were_compared() -> None:
    made = oracle("." * 30)
    bisect, seen = searched(made)
    assert seen.is_scanned and BisectOutcome(bisect, made, seen).exit_status == 0
    assert not searched(oracle("...xxxx"))[1].is_scanned


@given(st.text(".x?", min_size=1, max_size=40))
@settings(max_examples=150, deadline=None)
def test_any_profile(profile: str) -> None:
    """The search ends; what it calls the first bad place is bad, and the one before it good, or nobody could tell."""
    made = oracle(profile)
    bisect, seen = searched(made)
    assert bisect.is_done
    assert seen.earlier is None
    if bisect.first_bad is not None:
        assert profile[bisect.first_bad] == "x"
        assert profile[: bisect.first_bad][-1:] in ("", ".")
    if bisect.all_good:
        assert profile[-1] == "."


@given(st.integers(0, 30), st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_a_monotone_profile_is_called_so(good: int, bad: int) -> None:
    bisect, seen = searched(oracle("." * good + "x" * bad + "x" * (good + bad == 0)))
    assert seen.is_monotone
    assert bisect.first_bad == (good if bad or not good else None)


def test_a_person_s_good_is_not_forgotten() -> None:
    made = oracle("....x.......")
    start = made.start().mark("good", 5).mark("bad", 6)
    bisect, seen = searched(made, start)
    assert bisect.first_bad == 6
    assert (seen.earlier, seen.is_monotone) == (4, False)


@pytest.mark.parametrize(
    ("profile", "verdict", "status"),
    [("..xx", "diverges", 1), ("..~~", "drifts", 1), ("..~x", "diverges", 1), ("....", "agrees", 0),
     ("????", "unknown", 2), ("..?x", "diverges", 1), ("...?", "unknown", 2)],
)  # fmt: skip
def test_what_it_comes_to(profile: str, verdict: str, status: int) -> None:
    made = oracle(profile)
    bisect, seen = searched(made)
    outcome = BisectOutcome(bisect, made, seen)
    assert (outcome.verdict, outcome.exit_status) == (verdict, status)


def test_a_search_that_stopped_is_no_verdict() -> None:
    made = oracle("..xx")
    assert BisectOutcome(made.start().mark("bad"), made).verdict == "unknown"


def test_a_file_that_could_not_be_read_leaves_it_unsure() -> None:
    made = oracle("..")
    assert BisectOutcome(searched(made)[0], made, None, ("b.safetensors: is truncated",)).exit_status == 2


def test_a_person_s_bad_is_a_divergence() -> None:
    made = oracle("..")
    outcome = BisectOutcome(made.start().mark("good", 0).mark("bad", 1), made)
    assert outcome.verdict == "diverges"
    assert outcome.why_bad == "marked bad by hand; equal"


def test_a_probe_that_cannot_be_judged_leaves_the_whole_unknown() -> None:
    """A scan would say so of every pair that cannot be read; a search says so of those it probed."""
    made = oracle("......?.....")
    bisect, seen = searched(made)
    assert bisect.all_good
    outcome = BisectOutcome(bisect, made, seen)
    assert (outcome.verdict, outcome.exit_status) == ("unknown", 2)
    assert "layers.6 could not be judged" in outcome.reasons[0]


def test_what_the_model_gives_is_looked_at_though_something_runs_after_it() -> None:
    """A search that goes up to the last layer, which is right, would not meet the logits before it."""
    names = [*(f"layers.{k}" for k in range(12)), "lm_head", "cache.0", "cache.1", "cache.2"]
    reference: dict[str, Array | None] = dict.fromkeys(names, A)
    made = VerdictOracle.over(Comparer(), pairs(reference, reference | {"lm_head": -A}))
    bisect, seen = searched(made)
    assert bisect.any_bad
    assert BisectOutcome(bisect, made, seen).exit_status == 1
