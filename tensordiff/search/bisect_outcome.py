"""What a binary search came to, and whether it may be believed: a check of its neighbours and a few samples.

Errors are not monotone along the depth of a model: a branch beside the culprit agrees, a norm shrinks what came in. If
the check meets a bad pair before the answer, the search goes on before that one. No pair is read twice, so in the worst
case this reads what a scan would.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from tensordiff.compare.judge.verdict import VerdictName
from tensordiff.compare.row import Row
from tensordiff.search.bisect import Bisect, Mark
from tensordiff.search.oracle import MARKS, VerdictOracle, search


@dataclass(frozen=True)
class NeighbourCheck:
    """What a check found around the answer of a search."""

    looked: tuple[int, ...]
    """Positions that the check judged beside those of the search, in order."""
    marks: Mapping[int, Mark]
    """All marks, by position."""
    bad_from: int
    """The first bad position according to the search."""

    @property
    def earlier(self) -> int | None:
        """A bad position before the answer."""
        return min((at for at, mark in self.marks.items() if mark == "bad" and at < self.bad_from), default=None)

    @property
    def good_again(self) -> tuple[int, ...]:
        """Good positions after a bad one."""
        bad = min((at for at, mark in self.marks.items() if mark == "bad"), default=self.bad_from)
        return tuple(sorted(at for at, mark in self.marks.items() if mark == "good" and at > bad))

    @property
    def is_monotone(self) -> bool | None:
        """Whether everything judged is good up to one position and bad from there; None where all was skipped."""
        if set(self.marks.values()) <= {"skip"}:
            return None
        return self.earlier is None and not self.good_again


def check_neighbours(bisect: Bisect, oracle: VerdictOracle) -> NeighbourCheck:
    """Judge the neighbours of an answer, and a few samples."""
    given = {position: mark for mark, position in bisect.marks}
    checked = {at: oracle.mark(at) for at in _positions_to_check(bisect) if at not in given}
    measured = {at: oracle.mark(at) for at in oracle.rows}
    return NeighbourCheck(tuple(sorted(checked)), measured | given, bisect.bad_from)


def _positions_to_check(bisect: Bisect) -> list[int]:
    """Around the first bad position and after it; where none is bad, in the half that was not probed."""
    count, bad = len(bisect.points), bisect.bad_from
    if bisect.any_bad:
        some = [bad - 2, bad - 1, bad, bad + 1, (bad + count) // 2, count - 1]
    else:
        some = [count // 8, count // 4, 3 * count // 8]
    return sorted({at for at in some if 0 <= at < count})


def search_and_check(bisect: Bisect, oracle: VerdictOracle) -> Iterator[Bisect]:
    """Search, and search again before a bad position that the check finds earlier; yields every state."""
    while True:
        for state in search(bisect, oracle):
            bisect = state
            yield state
        earlier = check_neighbours(bisect, oracle).earlier
        if earlier is None or _contradicts_a_person(bisect, earlier, oracle):
            return
        bisect = bisect.before(earlier)
        yield bisect


def _contradicts_a_person(bisect: Bisect, earlier: int, oracle: VerdictOracle) -> bool:
    """Whether going back would drop a ``good`` that a person gave, and not the oracle: their marks are kept."""
    return any(mark == "good" and at > earlier and at not in oracle.rows for mark, at in bisect.marks)


@dataclass(frozen=True)
class BisectOutcome:
    """What a search came to, finished or not."""

    bisect: Bisect
    oracle: VerdictOracle
    """Measures the pairs, whoever marked them."""
    check: NeighbourCheck | None = None
    """None where a person answers, who is not asked more than needed."""
    doubts: tuple[str, ...] = ()
    """Why the two dumps cannot be said to agree, even where nothing is bad: a sentence each."""

    @cached_property
    def first_bad(self) -> Row | None:
        """The row of the first bad pair, if the search isolated one."""
        at = self.bisect.first_bad
        return None if at is None else self.oracle.row(at)

    @property
    def why_bad(self) -> str:
        """What is wrong with the first bad pair; empty where none is isolated."""
        if self.first_bad is None:
            return ""
        verdict = self.first_bad.verdict
        return verdict.why if MARKS[verdict.name] == "bad" else f"marked bad by hand; {verdict.why}"

    @cached_property
    def verdict(self) -> VerdictName:
        """Of the whole search. A ``bad`` from a person is a divergence; pairs that only drift are not."""
        if not self.bisect.is_done:
            return "unknown"
        if self.bisect.any_bad:
            return "drifts" if self._bad_verdicts() == {"drifts"} else "diverges"
        return "agrees" if self.bisect.all_good and not self.doubts else "unknown"

    def _bad_verdicts(self) -> set[VerdictName]:
        marks = self.check.marks if self.check else {at: mark for mark, at in self.bisect.marks}
        return {self.oracle.row(at).verdict.name for at, mark in marks.items() if mark == "bad"}

    @property
    def exit_status(self) -> int:
        """0 nothing is bad, 1 something is, 2 could not tell."""
        return {"agrees": 0, "drifts": 1, "diverges": 1, "unknown": 2}[self.verdict]
