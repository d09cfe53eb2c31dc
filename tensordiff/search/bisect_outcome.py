"""Whether a binary search may be believed: a look at the neighbours of its answer, and a few samples beyond.

Errors are not monotone along the depth of a model: a branch beside the culprit agrees, a norm shrinks what
came in. A bad place that turns up before the answer is taken up, and searched before. No pair is read
twice, so at the worst this reads what a scan would.

What a binary search came to: the first bad place or the suspects, one verdict, an exit status.
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
    """What was seen around an answer."""

    looked: tuple[int, ...]
    """Positions judged beyond those that the search asked about, in order."""
    marks: Mapping[int, Mark]
    """All that was judged, by position."""
    bad_from: int
    """Where the search holds the first bad place to be."""

    @property
    def earlier(self) -> int | None:
        """A bad place before the answer."""
        return min((at for at, mark in self.marks.items() if mark == "bad" and at < self.bad_from), default=None)

    @property
    def good_again(self) -> tuple[int, ...]:
        """Good places after a bad one."""
        bad = min((at for at, mark in self.marks.items() if mark == "bad"), default=self.bad_from)
        return tuple(sorted(at for at, mark in self.marks.items() if mark == "good" and at > bad))

    @property
    def is_monotone(self) -> bool | None:
        """Whether all that was judged is good up to one place and bad from there; None where all was skipped."""
        if set(self.marks.values()) <= {"skip"}:
            return None
        return self.earlier is None and not self.good_again


def check_neighbours(bisect: Bisect, oracle: VerdictOracle) -> NeighbourCheck:
    """Look at the neighbours of an answer, and at a few samples."""
    given = {position: mark for mark, position in bisect.marks}
    around = {at: oracle.mark(at) for at in _around(bisect) if at not in given}
    seen = {at: oracle.mark(at) for at in oracle.rows}
    return NeighbourCheck(tuple(sorted(around)), seen | given, bisect.bad_from)


def _around(bisect: Bisect) -> list[int]:
    """Where to look: about the first bad place and after it; where none is bad, in the half that was not probed."""
    count, bad = len(bisect.places), bisect.bad_from
    if bisect.any_bad:
        some = [bad - 2, bad - 1, bad, bad + 1, (bad + count) // 2, count - 1]
    else:
        some = [count // 8, count // 4, 3 * count // 8]
    return sorted({at for at in some if 0 <= at < count})


def search_and_check(bisect: Bisect, oracle: VerdictOracle) -> Iterator[Bisect]:
    """Search; where a check meets a bad place before the answer, search again before it. Every state on the way."""
    while True:
        for state in search(bisect, oracle):
            bisect = state
            yield state
        earlier = check_neighbours(bisect, oracle).earlier
        if earlier is None or _is_said_good(bisect, earlier, oracle):
            return
        bisect = bisect.before(earlier)
        yield bisect


def _is_said_good(bisect: Bisect, earlier: int, oracle: VerdictOracle) -> bool:
    """Whether somebody else called a place good that would be forgotten; their word is not ours to drop."""
    return any(mark == "good" and at > earlier and at not in oracle.rows for mark, at in bisect.marks)


@dataclass(frozen=True)
class BisectOutcome:
    """What a search came to, done or not."""

    bisect: Bisect
    oracle: VerdictOracle
    """What measures the places, whoever judged them."""
    check: NeighbourCheck | None = None
    """None where nobody checked: each answer of a person is dear."""
    unread: tuple[str, ...] = ()
    """Files of the two dumps that could not be read, each with the reason."""

    @cached_property
    def first_bad(self) -> Row | None:
        """The first bad place, measured."""
        at = self.bisect.first_bad
        return None if at is None else self.oracle.row(at)

    @property
    def why_bad(self) -> str:
        """What is wrong with the first bad place; empty where none is isolated."""
        if self.first_bad is None:
            return ""
        verdict = self.first_bad.verdict
        return verdict.why if MARKS[verdict.name] == "bad" else f"marked bad by hand; {verdict.why}"

    @cached_property
    def verdict(self) -> VerdictName:
        """Of the whole. A person's ``bad`` is a divergence; without one, drifting places alone are not."""
        if not self.bisect.is_done:
            return "unknown"
        if self.bisect.any_bad:
            return "drifts" if self._bad_verdicts() == {"drifts"} else "diverges"
        return "agrees" if self.bisect.all_good and not self.unread else "unknown"

    def _bad_verdicts(self) -> set[VerdictName]:
        marks = self.check.marks if self.check else {at: mark for mark, at in self.bisect.marks}
        return {self.oracle.row(at).verdict.name for at, mark in marks.items() if mark == "bad"}

    @property
    def exit_status(self) -> int:
        """0 nothing is bad, 1 something is, 2 could not tell."""
        return {"agrees": 0, "drifts": 1, "diverges": 1, "unknown": 2}[self.verdict]
