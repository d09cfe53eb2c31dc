"""The owner of the session: whatever is asked for while something else is under way counts, in any order."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from textual.message import Message

from tensordiff.align.rules.file import read_rules_file
from tensordiff.align.rules.rule import Rule
from tensordiff.align.rules.tables import LARGEST_LIMIT
from tensordiff.errors import AlignError
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.tui.comparison.messages import (
    Aligned,
    AlignmentFailed,
    DumpsChanged,
    MeasurementEnded,
    RowsMeasured,
)
from tensordiff.tui.comparison.session_owner import SessionOwner
from tests.making import numbers, write
from tests.tui.app_host import INJECTED, samples

RULE = Rule("candidate", r"\bup_proj$", "renamed")


class Bench:
    """An owner without a screen: work is done and told when a test says so."""

    def __init__(self, request: Request) -> None:
        self.works: list[Callable[[], object]] = []
        self.failures: list[Exception] = []
        self.owner = SessionOwner(request, lambda _, work: self.works.append(work), self._take, saves_state=False)
        self.owner.open(request)
        self.work()

    @property
    def session(self) -> Session:
        assert self.owner.session is not None
        return self.owner.session

    def work(self, *, last_first: bool = False) -> None:
        """Do all that was begun, and what that begins."""
        while self.works:
            self.works.pop(-1 if last_first else 0)()

    def edit(self) -> None:
        self.owner.edit_rules(self.owner.book.added(RULE))

    def _take(self, message: Message) -> None:
        match message:
            case Aligned():
                self.owner.take_alignment(message)
            case AlignmentFailed() if self.owner.take_failure(message):
                self.failures.append(message.error)
            case RowsMeasured():
                self.owner.take_rows(message)
            case MeasurementEnded():
                self.owner.take_result(message)
            case DumpsChanged():
                self.owner.take_change_on_disk(message)


@pytest.fixture
def bench() -> Bench:
    return Bench(samples())


@pytest.mark.parametrize("last_first", [False, True])
@pytest.mark.parametrize("edit_first", [False, True])
def test_an_edit_and_an_opening_at_once_both_count(bench: Bench, last_first: bool, edit_first: bool) -> None:
    steps = [lambda: bench.owner.open(replace(bench.owner.request, injected=INJECTED)), bench.edit]
    for step in reversed(steps) if edit_first else steps:
        step()
    bench.work(last_first=last_first)
    assert bench.session.request.injected == INJECTED and bench.session.comparer.injected is not None
    assert bench.session.rules.rules == (RULE,) == bench.owner.rules.rules
    assert bench.owner.request == bench.session.request and not bench.owner.is_aligning


def test_after_an_opening_that_failed_the_request_is_that_of_what_is_shown(bench: Bench, tmp_path: Path) -> None:
    before = bench.session
    bench.owner.open(replace(bench.owner.request, injected=tmp_path / "nothing"))
    bench.work()
    assert len(bench.failures) == 1 and "nothing" in str(bench.failures[0])
    assert bench.session is before and bench.owner.request == before.request
    bench.edit()
    bench.work()
    assert bench.session.rules.rules == (RULE,) and bench.session.request.injected is None


def test_an_edit_made_during_an_opening_that_fails_is_aligned_by(bench: Bench, tmp_path: Path) -> None:
    bench.owner.open(replace(bench.owner.request, injected=tmp_path / "nothing"))
    bench.edit()
    bench.work()
    assert len(bench.failures) == 1
    assert bench.session.rules.rules == (RULE,) and bench.owner.request.injected is None


@pytest.mark.parametrize("last_first", [False, True])
def test_rules_written_during_an_opening_are_those_of_the_session(
    bench: Bench, tmp_path: Path, last_first: bool
) -> None:
    path = tmp_path / "rules.toml"
    bench.owner.open(replace(bench.owner.request, injected=INJECTED))
    bench.edit()
    bench.owner.rules_written(bench.owner.book.write(path), path)
    bench.work(last_first=last_first)
    assert bench.session.request.rules == path == bench.owner.request.rules
    assert bench.session.rules == bench.session.saved_rules == read_rules_file(path)
    assert bench.session.request.injected == INJECTED and bench.owner.book.is_saved


def test_rules_written_without_an_edit_under_way_measure_nothing_again(bench: Bench, tmp_path: Path) -> None:
    bench.edit()
    bench.work()
    bench.owner.measure()
    bench.owner.rules_written(bench.owner.book.write(tmp_path / "rules.toml"), tmp_path / "rules.toml")
    bench.work()
    assert bench.owner.outcome is not None and bench.owner.listing.measured == len(bench.owner.listing)
    assert bench.session.request.rules == tmp_path / "rules.toml"


def test_a_tolerance_given_during_an_opening_counts(bench: Bench) -> None:
    bench.owner.open(replace(bench.owner.request, injected=INJECTED))
    bench.owner.judge_by(1e3)
    bench.work()
    assert bench.session.comparer.limits.threshold == 1e3 == bench.owner.threshold
    assert bench.session.request.injected == INJECTED
    bench.owner.measure()
    bench.work()
    assert bench.owner.outcome is not None and bench.owner.outcome.verdict == "agrees"


def test_rows_of_a_measuring_before_are_not_taken(bench: Bench) -> None:
    bench.owner.measure()
    stale = bench.works.pop()
    bench.owner.judge_by(1e3)
    stale()
    assert bench.owner.listing.measured == 0 and not bench.owner.outcome
    bench.owner.measure()
    stale()
    bench.work()
    outcome = bench.owner.outcome
    assert outcome is not None and outcome.verdict == "agrees"


@pytest.mark.parametrize("way", [1, -1])
def test_a_tolerance_that_is_scaled_stays_a_number_above_zero(bench: Bench, way: int) -> None:
    for _ in range(700):
        bench.owner.judge_by(bench.owner.scaled_threshold(way))
    assert bench.owner.threshold is not None
    assert 0 < bench.owner.threshold < LARGEST_LIMIT and not 1e-300 < bench.owner.threshold < 1e37


@pytest.mark.parametrize("threshold", [math.inf, math.nan, -1.0])
def test_a_tolerance_that_is_none_is_refused_and_the_old_one_stays(bench: Bench, threshold: float) -> None:
    bench.owner.judge_by(1e-3)
    with pytest.raises(AlignError, match="0 or more and finite"):
        bench.owner.judge_by(threshold)
    assert bench.owner.threshold == 1e-3 == bench.session.comparer.limits.threshold


def test_edits_can_be_undone_after_the_dumps_were_read_again(bench: Bench) -> None:
    bench.edit()
    bench.work()
    bench.owner.open(bench.owner.request)
    bench.work()
    assert bench.owner.rules.rules == (RULE,) and len(bench.owner.book.past) == 1
    bench.owner.edit_rules(bench.owner.book.undone())
    bench.work()
    assert bench.session.rules.rules == ()


def test_what_lies_on_disk_is_told_once(tmp_path: Path) -> None:
    reference, candidate = (write(tmp_path / name, {"a": numbers(2)}) for name in "rc")
    bench = Bench(Request(reference, candidate))
    told: list[Message] = []
    bench.owner._post = told.append
    (candidate / "more").write_text("")
    bench.owner.look_at_disk()
    bench.work()
    [message] = told
    assert isinstance(message, DumpsChanged)
    assert bench.owner.take_change_on_disk(message) and not bench.owner.take_change_on_disk(message)
    bench.owner.look_at_disk()
    bench.work()
    assert len(told) == 1
