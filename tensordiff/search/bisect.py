"""Binary search for the first bad place, as pure state: every action returns a new ``Bisect``.

It holds an ordered row of places and the marks given so far, in the terms of ``git bisect``; it reads
nothing and asks nobody (see ``oracle``). It assumes that everything before the first bad place is good and
everything after it bad. Whether that holds is for ``monotone`` to check, not for this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple, cast

from tensordiff.errors import TensordiffError, printable

Mark = Literal["good", "bad", "skip"]
ASSUMPTION = "everything before the first bad place is good, all after it bad"
_LINE = re.compile(r"(good|bad|skip) ([0-9]{1,9})(?: (.*))?")


class ProbePoint(NamedTuple):
    """What can be marked: a pair's number, which stays when others are left out, and its name."""

    number: int
    name: str


class PositionMark(NamedTuple):
    """A mark and the position it was given to."""

    mark: Mark
    position: int


@dataclass(frozen=True)
class Bisect:
    """A search under way. Positions count the places from 0."""

    places: tuple[ProbePoint, ...]
    marks: tuple[PositionMark, ...] = ()
    """Oldest first; no good one stands at or after a bad one."""

    @cached_property
    def good_until(self) -> int:
        """How many places from the start are good."""
        return max((position + 1 for mark, position in self.marks if mark == "good"), default=0)

    @cached_property
    def bad_from(self) -> int:
        """The first place known to be bad; the number of places where none is."""
        return min((position for mark, position in self.marks if mark == "bad"), default=len(self.places))

    @cached_property
    def _runs(self) -> list[range]:
        """Stretches of places that are still to be judged, cut by what was skipped."""
        skipped = {position for mark, position in self.marks if mark == "skip"}
        cuts = sorted(position for position in skipped if self.good_until <= position < self.bad_from)
        return [range(a + 1, b) for a, b in pairwise((self.good_until - 1, *cuts, self.bad_from)) if b > a + 1]

    @cached_property
    def probe(self) -> int | None:
        """The position to judge next; None when the search is done.

        Away from what was skipped: its neighbours are likely to be skipped too.
        """
        middle = (self.good_until + self.bad_from) // 2
        run = max(self._runs, key=lambda run: (len(run), -abs(_middle(run) - middle)), default=None)
        return None if run is None else _middle(run)

    @property
    def is_done(self) -> bool:
        """Whether no answer could narrow it any further."""
        return not self._runs

    @property
    def suspects(self) -> range:
        """Positions that may be the first bad one; more than one is left at the end where some were skipped."""
        return range(self.good_until, min(self.bad_from + 1, len(self.places)))

    @property
    def steps(self) -> int:
        """How many questions are left, unless some are skipped."""
        return sum(map(len, self._runs)).bit_length()

    @property
    def any_bad(self) -> bool:
        """Whether a bad place is known."""
        return self.bad_from < len(self.places)

    @property
    def all_good(self) -> bool:
        """Whether the search came to its end without a bad place."""
        return self.good_until == len(self.places)

    @property
    def first_bad(self) -> int | None:
        """The first bad position, once there is one suspect left and it is bad."""
        return self.bad_from if self.any_bad and self.good_until == self.bad_from else None

    def mark(self, mark: Mark, position: int | None = None) -> Bisect:
        """Judge a place: the probe, unless told otherwise."""
        at = self.probe if position is None else position
        if at is None:
            raise TensordiffError("the search is done, there is nothing left to mark; undo a mark first")
        if (mark == "good" and at >= self.bad_from) or (mark == "bad" and at < self.good_until):
            raise TensordiffError(self._contradiction(mark, at))
        return replace(self, marks=(*self.marks, PositionMark(mark, at)))

    def _contradiction(self, mark: Mark, at: int) -> str:
        other, found = ("bad", self.bad_from) if mark == "good" else ("good", self.good_until - 1)
        mine, theirs = self._told(at), self._told(found)
        return f"{mine} cannot be {mark} where {theirs} is {other}: {ASSUMPTION}; undo one of the two"

    def undo(self) -> Bisect:
        """Take the last mark back, if there is one."""
        return replace(self, marks=self.marks[:-1])

    def before(self, position: int) -> Bisect:
        """Search again before a bad place that the assumption called good: what it contradicts is forgotten."""
        kept = tuple(found for found in self.marks if found.mark != "good" or found.position < position)
        return replace(self, marks=(*kept, PositionMark("bad", position)))

    def log(self) -> str:
        """The marks as lines that ``replay`` takes, as ``git bisect log`` has them."""
        lines = [f"# tensordiff bisect, {len(self.places)} places", f"# {ASSUMPTION}"]
        lines += [f"{mark} {self._told(position)}" for mark, position in self.marks]
        if self.first_bad is not None:
            lines.append(f"# first bad: {self._told(self.first_bad)}")
        return "".join(f"{line}\n" for line in lines)

    def replay(self, log: str) -> Bisect:
        """Give all marks of a log again."""
        state, positions = self, {place.number: k for k, place in enumerate(self.places)}
        for number, line in _lines(log):
            try:
                state = state._replay_line(line, positions)
            except TensordiffError as error:
                raise TensordiffError(f"line {number}: {error}") from error
        return state

    def _replay_line(self, line: str, positions: dict[int, int]) -> Bisect:
        found = _LINE.fullmatch(line)
        if found is None:
            raise TensordiffError(f"{line!r:.80} is no mark; write good, bad or skip, a number and a name")
        position = positions.get(int(found[2]))
        if position is None or found[3] not in (None, self._name(position)):
            here = "is none of the places searched here" if position is None else f"is {self._name(position)} here"
            raise TensordiffError(f"number {found[2]} {here}; the log is of other dumps, or of other options")
        return self.mark(cast(Mark, found[1]), position)

    def _told(self, position: int) -> str:
        return f"{self.places[position].number} {self._name(position)}"

    def _name(self, position: int) -> str:
        return printable(self.places[position].name).strip()


def _middle(run: range) -> int:
    return (run.start + run.stop) // 2


def _lines(log: str) -> Iterable[tuple[int, str]]:
    """Lines that say something, with their numbers."""
    stripped = ((number, line.strip()) for number, line in enumerate(log.split("\n"), 1))
    return ((number, line) for number, line in stripped if line and not line.startswith("#"))
