"""What a binary search came to: the first bad place or the suspects, one verdict, an exit status."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tensordiff.compare.engine import Row
from tensordiff.compare.verdict import VerdictName
from tensordiff.search.bisect import Bisect
from tensordiff.search.monotone import Check
from tensordiff.search.oracle import MARKS, VerdictOracle


@dataclass(frozen=True)
class BisectOutcome:
    """What a search came to, done or not."""

    bisect: Bisect
    oracle: VerdictOracle
    """What measures the places, whoever judged them."""
    check: Check | None = None
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
