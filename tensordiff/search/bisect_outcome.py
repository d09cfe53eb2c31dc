"""The result of a binary search, and a check of its neighbours and a few samples that shows whether to believe it.

Errors are not monotone along the depth of a model: a branch beside the culprit may agree, and a norm may shrink the
incoming error. If the check finds a bad pair before the answer, the search continues before that pair. If nothing is
bad, all pairs are compared before that is reported, since pairs that were not probed are not known to agree.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from tensordiff.compare.judge.verdict import VerdictName
from tensordiff.compare.row import Row
from tensordiff.errors import printable
from tensordiff.search.bisect import Bisect, Mark
from tensordiff.search.final_output import WITHOUT_VALUES, own_outputs
from tensordiff.search.oracle import MARKS, VerdictOracle, search

_MOST_GIVEN = 4  # outputs of the model that are checked, from the first and from the last steps


@dataclass(frozen=True)
class NeighbourCheck:
    """The result of checking around the answer of a search."""

    checked: tuple[int, ...]
    """Positions that the check judged in addition to those of the search, in order."""
    marks: Mapping[int, Mark]
    """Marks by position: those of the search and of the check, and of everything measured that is not good."""
    bad_from: int
    """The first bad position according to the search."""
    is_scanned: bool = False
    """Whether all pairs were checked, as happens before nothing is reported as bad."""
    unproven: str = ""
    """Why the answer may be wrong after all: a sentence, or empty."""
    good: Sequence[int] = ()
    """Positions of everything else that is measured."""

    @cached_property
    def earlier(self) -> int | None:
        """The first bad position before the answer, if any."""
        return min((at for at, mark in self.marks.items() if mark == "bad" and at < self.bad_from), default=None)

    @cached_property
    def good_again(self) -> tuple[int, ...]:
        """Good positions that come after a bad one."""
        bad = min((at for at, mark in self.marks.items() if mark == "bad"), default=self.bad_from)
        good = chain(self.good, (at for at, mark in self.marks.items() if mark == "good"))
        return tuple(sorted(at for at in good if at > bad))

    @cached_property
    def is_monotone(self) -> bool | None:
        """Whether all marks are good up to one position and bad from there on; None if all were skipped."""
        if not self.good and set(self.marks.values()) <= {"skip"}:
            return None
        return self.earlier is None and not self.good_again


def check_neighbours(bisect: Bisect, oracle: VerdictOracle) -> NeighbourCheck:
    """Judge the neighbours of an answer and a few samples."""
    given = {position: mark for mark, position in bisect.marks}
    some = _positions_to_check(bisect) if bisect.any_bad else _samples_and_outputs(bisect, oracle)
    checked = {at for at in some if at not in given}
    is_scanned = not bisect.any_bad and all(oracle.mark(at) == "good" for at in checked)
    if is_scanned:  # the search probes only a few pairs; the others are not known to agree
        found = {at: row for at, row in oracle.scanned.items() if at not in given}
        oracle.rows.update(found)
        checked.update(found)
    marks: dict[int, Mark] = {}
    good = array("q")  # nearly all of what is measured, and of a million a dict would take long to make and to free
    for at in chain(oracle.rows, checked):
        if (mark := oracle.mark(at)) != "good" or at in checked:
            marks[at] = mark
        elif at not in given:
            good.append(at)
    unproven = oracle.unproven if bisect.any_bad else ""
    return NeighbourCheck(tuple(sorted(checked)), marks | given, bisect.bad_from, is_scanned, unproven, good)


def _positions_to_check(bisect: Bisect) -> list[int]:
    """The neighbours of an answer, and samples after it."""
    count, bad = len(bisect.points), bisect.bad_from
    some = [bad - 2, bad - 1, bad, bad + 1, (bad + count) // 2, count - 1]
    return sorted({at for at in some if 0 <= at < count})


def _samples_and_outputs(bisect: Bisect, oracle: VerdictOracle) -> list[int]:
    """If nothing is bad: a few samples and the model's own outputs, since layers that run after a bad one may be
    right."""
    count = len(bisect.points)
    own = {id(entry) for entry in own_outputs([pair.reference for pair in oracle.pairs])}
    given = [at for at, pair in enumerate(oracle.pairs) if id(pair.reference) in own]
    some = {count // 8, count // 4, 3 * count // 8, *given[:_MOST_GIVEN], *given[-_MOST_GIVEN:]}
    return sorted(at for at in some if at < count)


def _why_skipped(row: Row) -> str:
    return row.verdict.why if row.verdict.name == "unknown" else f"it is {WITHOUT_VALUES}"


def search_and_check(bisect: Bisect, oracle: VerdictOracle) -> Iterator[Bisect]:
    """Search, and search again before any earlier bad position that the check finds; yields every state."""
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
    """Whether going back would drop a ``good`` mark that a person gave rather than the oracle; such marks are kept."""
    return any(mark == "good" and at > earlier and at not in oracle.rows for mark, at in bisect.marks)


@dataclass(frozen=True)
class BisectOutcome:
    """The result of a search, finished or not."""

    bisect: Bisect
    oracle: VerdictOracle
    """Measures the pairs, whoever marks them."""
    check: NeighbourCheck | None = None
    """None if a person answers, who is not asked more than necessary."""
    doubts: tuple[str, ...] = ()
    """Why the two dumps cannot be said to agree even if nothing is bad, one sentence each."""
    rerun_doubt: str = ""
    """Why reruns did not prove the answer: a sentence, or empty."""

    @property
    def unproven(self) -> str:
        """Why the pair that the search found may be right after all: a sentence, or empty."""
        return self.rerun_doubt or (self.check.unproven if self.check else "")

    @cached_property
    def first_bad(self) -> Row | None:
        """The row of the first bad pair, if the search isolated one."""
        at = self.bisect.first_bad
        return None if at is None or self.unproven else self.oracle.row(at)

    @property
    def why_bad(self) -> str:
        """What is wrong with the first bad pair; empty if none is isolated."""
        if self.first_bad is None:
            return ""
        verdict = self.first_bad.verdict
        return verdict.why if MARKS[verdict.name] == "bad" else f"marked bad by hand; {verdict.why}"

    @cached_property
    def verdict(self) -> VerdictName:
        """The verdict on the whole search. A person's ``bad`` counts as a divergence; pairs that only drift do not."""
        if not self.bisect.is_done:
            return "unknown"
        if self.bisect.any_bad and self.unproven:
            return "unknown"
        if self.bisect.any_bad:
            return "drifts" if self._bad_verdicts() == {"drifts"} else "diverges"
        return "agrees" if self.bisect.all_good and not self.reasons else "unknown"

    @cached_property
    def reasons(self) -> tuple[str, ...]:
        """Why agreement cannot be claimed although nothing is bad: the doubts, and pairs that were probed but not
        judged."""
        marks = self.check.marks if self.check else {}
        skipped = sorted(at for at, mark in marks.items() if mark == "skip" and at in self.oracle.rows)
        rows = (self.oracle.rows[at] for at in skipped if self.oracle.mark(at) == "skip")
        return (*self.doubts, *(f"{printable(row.pair.name)} could not be judged: {_why_skipped(row)}" for row in rows))

    def _bad_verdicts(self) -> set[VerdictName]:
        marks = self.check.marks if self.check else {at: mark for mark, at in self.bisect.marks}
        return {self.oracle.row(at).verdict.name for at, mark in marks.items() if mark == "bad"}

    @property
    def exit_status(self) -> int:
        """0 if nothing is bad, 1 if something is, 2 if inconclusive."""
        return {"agrees": 0, "drifts": 1, "diverges": 1, "unknown": 2}[self.verdict]
