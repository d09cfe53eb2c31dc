"""Binary search for the first bad pair, as an immutable state: every action returns a new ``Bisect``.

The state holds the points in execution order and the marks given so far, in the terms of ``git bisect``. It reads no
data and asks nobody; see ``oracle``. It assumes that everything before the first bad point is good and everything after
it bad; ``bisect_outcome`` checks that assumption.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple, cast

from tensordiff.errors import TensordiffError, printable

Mark = Literal["good", "bad", "skip"]
ASSUMPTION = "everything before the first bad place is good, all after it bad"
_LINE = re.compile(r"(good|bad|skip) ([0-9]{1,9})(?: (.*))?")


class ProbePoint(NamedTuple):
    """A pair that can be marked: its number, which stays the same when other pairs are left out, and its name."""

    number: int
    name: str


class PositionMark(NamedTuple):
    """A mark and the position that it was given to."""

    mark: Mark
    position: int


@dataclass(frozen=True)
class Bisect:
    """The state of a search. Positions are counted from 0."""

    points: Sequence[ProbePoint]
    marks: tuple[PositionMark, ...] = ()
    """Oldest first; no good mark is at or after a bad one."""

    @cached_property
    def good_until(self) -> int:
        """The number of good points at the start."""
        return max((position + 1 for mark, position in self.marks if mark == "good"), default=0)

    @cached_property
    def bad_from(self) -> int:
        """The first position known to be bad, or the number of points if none is."""
        return min((position for mark, position in self.marks if mark == "bad"), default=len(self.points))

    @cached_property
    def _runs(self) -> list[range]:
        """The ranges of positions that are still open, split at skipped ones."""
        skipped = {position for mark, position in self.marks if mark == "skip"}
        cuts = sorted(position for position in skipped if self.good_until <= position < self.bad_from)
        return [range(a + 1, b) for a, b in pairwise((self.good_until - 1, *cuts, self.bad_from)) if b > a + 1]

    @cached_property
    def probe(self) -> int | None:
        """The next position to judge; None when the search is done.

        It stays away from skipped positions, since their neighbours are likely to be skipped as well.
        """
        middle = (self.good_until + self.bad_from) // 2
        run = max(self._runs, key=lambda run: (len(run), -abs(_middle(run) - middle)), default=None)
        return None if run is None else _middle(run)

    @property
    def is_done(self) -> bool:
        """Whether no further answer can narrow the search."""
        return not self._runs

    @property
    def suspects(self) -> range:
        """Positions that may be the first bad one; several can remain if some were skipped."""
        return range(self.good_until, min(self.bad_from + 1, len(self.points)))

    @property
    def steps(self) -> int:
        """The number of questions left if none is skipped."""
        return sum(map(len, self._runs)).bit_length()

    @property
    def any_bad(self) -> bool:
        """Whether a bad point is known."""
        return self.bad_from < len(self.points)

    @property
    def all_good(self) -> bool:
        """Whether the search ended without a bad point."""
        return self.good_until == len(self.points)

    @property
    def first_bad(self) -> int | None:
        """The first bad position, once only one suspect is left and it is bad."""
        return self.bad_from if self.any_bad and self.good_until == self.bad_from else None

    def mark(self, mark: Mark, position: int | None = None) -> Bisect:
        """Mark a position, by default the probe."""
        at = self.probe if position is None else position
        if at is None:
            raise TensordiffError("the search is done, there is nothing left to mark; undo a mark first")
        if (mark == "good" and at >= self.bad_from) or (mark == "bad" and at < self.good_until):
            raise TensordiffError(self._contradiction(mark, at))
        return replace(self, marks=(*self.marks, PositionMark(mark, at)))

    def _contradiction(self, mark: Mark, at: int) -> str:
        other, where = ("bad", self.bad_from) if mark == "good" else ("good", self.good_until - 1)
        mine, theirs = self._label(at), self._label(where)
        return f"{mine} cannot be {mark} where {theirs} is {other}: {ASSUMPTION}; undo one of the two"

    def undo(self) -> Bisect:
        """Remove the last mark, if there is one."""
        return replace(self, marks=self.marks[:-1])

    def before(self, position: int) -> Bisect:
        """Continue the search before a bad position that was assumed to be good, dropping marks that contradict it."""
        kept = tuple(old for old in self.marks if old.mark != "good" or old.position < position)
        return replace(self, marks=(*kept, PositionMark("bad", position)))

    def log(self) -> str:
        """The marks as text for ``replay``, like ``git bisect log``."""
        lines = [f"# tensordiff bisect, {len(self.points)} places", f"# {ASSUMPTION}"]
        lines += [f"{mark} {self._label(position)}" for mark, position in self.marks]
        if self.first_bad is not None:
            lines.append(f"# first bad: {self._label(self.first_bad)}")
        return "".join(f"{line}\n" for line in lines)

    def replay(self, log: str) -> Bisect:
        """Apply all marks of a log."""
        lines = [*_lines(log)]
        told = {int(match[2]) for _, line in lines if (match := _LINE.fullmatch(line))}
        state, positions = self, self._positions(told) if told else {}
        for number, line in lines:
            try:
                state = state._replay_line(line, positions)
            except TensordiffError as error:
                raise TensordiffError(f"line {number}: {error}") from error
        return state

    def _positions(self, numbers: set[int]) -> dict[int, int]:
        """The positions of the points with these numbers; of all points it would be a dict of a million."""
        return {point.number: k for k, point in enumerate(self.points) if point.number in numbers}

    def _replay_line(self, line: str, positions: Mapping[int, int]) -> Bisect:
        match = _LINE.fullmatch(line)
        if match is None:
            raise TensordiffError(f"{line!r:.80} is not a mark; write good, bad or skip, a number and a name")
        position = positions.get(int(match[2]))
        if position is None or match[3] not in (None, self._name(position)):
            here = "is not one of the places searched here" if position is None else f"is {self._name(position)} here"
            raise TensordiffError(f"number {match[2]} {here}; the log is of other dumps, or of other options")
        return self.mark(cast(Mark, match[1]), position)

    def _label(self, position: int) -> str:
        return f"{self.points[position].number} {self._name(position)}"

    def _name(self, position: int) -> str:
        return printable(self.points[position].name).strip()


def _middle(run: range) -> int:
    return (run.start + run.stop) // 2


def _lines(log: str) -> Iterable[tuple[int, str]]:
    """The lines that are neither empty nor comments, with their line numbers."""
    stripped = ((number, line.strip()) for number, line in enumerate(log.split("\n"), 1))
    return ((number, line) for number, line in stripped if line and not line.startswith("#"))
