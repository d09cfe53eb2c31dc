"""Oracles, which answer the probes of a search: by a verdict, a person or a rerun.

``VerdictOracle`` reads only the pairs that are probed, each once. It judges a pair by itself: the error that came into
its layer is unknown, so a pair that would drift in a full comparison may diverge here. For a search both are bad.
Before it reports that nothing is bad, ``scanned`` compares all pairs.

A quantized candidate that rounds activations to 8 bits drifts for that reason alone. For such a candidate a drift is
good, and a divergence is bad only if ``scanned`` finds a culprit, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Literal, Protocol, overload

from tensordiff.align.match import Pair
from tensordiff.compare.comparer import Comparer
from tensordiff.compare.judge.verdict import VerdictName
from tensordiff.compare.row import Row
from tensordiff.search.bisect import Bisect, Mark, ProbePoint
from tensordiff.search.final_output import has_values
from tensordiff.search.outcome import culprits
from tensordiff.util.slices import release

Answer = Mark | Literal["undo"]
MARKS: dict[VerdictName, Mark] = {"agrees": "good", "drifts": "bad", "diverges": "bad", "unknown": "skip"}

EIGHT_BIT_DOUBT = (
    "the candidate rounds to 8 bits what it multiplies, and errors of that size may have added up to this; "
    "say how far off is bad with --threshold X, or see compare"
)


class Oracle(Protocol):
    """Answers the probes of a search."""

    def ask(self, bisect: Bisect) -> Answer | None:
        """Mark the probe, or undo the last mark; None stops the search."""


def search(bisect: Bisect, oracle: Oracle) -> Iterator[Bisect]:
    """Ask until the first bad pair is isolated or the oracle stops; yields every state."""
    while not bisect.is_done and (answer := oracle.ask(bisect)) is not None:
        bisect = bisect.undo() if answer == "undo" else bisect.mark(answer)
        yield bisect


class RowsByPosition(MutableMapping[int, Row]):
    """Rows by position, where the first ones are in a sequence: to make and free a dict of a million takes long."""

    def __init__(self, first: Sequence[Row] = ()) -> None:
        self._first, self._others = first, dict[int, Row]()

    def __contains__(self, at: object) -> bool:
        return at in self._others or at in range(len(self._first))

    def __getitem__(self, at: int) -> Row:
        return self._first[at] if at not in self._others and at in range(len(self._first)) else self._others[at]

    def __setitem__(self, at: int, row: Row) -> None:
        self._others[at] = row

    def __delitem__(self, at: int) -> None:
        raise TypeError("none can be taken out")

    def __iter__(self) -> Iterator[int]:
        count = len(self._first)
        return chain(range(count), (at for at in self._others if at >= count))

    def __len__(self) -> int:
        return len(self._first) + sum(at >= len(self._first) for at in self._others)


@dataclass(frozen=True)
class _Points(Sequence[ProbePoint]):
    """The points of pairs, each made on access, for the same reason."""

    pairs: Sequence[Pair]

    def __len__(self) -> int:
        return len(self.pairs)

    @overload
    def __getitem__(self, at: int) -> ProbePoint: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[ProbePoint]: ...
    def __getitem__(self, at: int | slice) -> ProbePoint | Sequence[ProbePoint]:
        if isinstance(at, slice):
            return _Points(self.pairs[at])
        return ProbePoint(self.pairs[at].index, _name(self.pairs[at]))


@dataclass(frozen=True)
class VerdictOracle:
    """Marks a pair by its own verdict, which uses the user's limits if there are any and the floor otherwise."""

    comparer: Comparer
    pairs: tuple[Pair, ...]
    rows: MutableMapping[int, Row] = field(default_factory=dict)
    """The rows measured so far, by position."""

    @classmethod
    def over(cls, comparer: Comparer, pairs: Sequence[Pair]) -> VerdictOracle:
        """Search the outputs, since every input is another layer's output; search all pairs if there are no outputs."""
        outputs = tuple(pair for pair in pairs if not pair.reference.is_input)
        return cls(comparer.alone(), outputs if 0 < len(outputs) < len(pairs) else tuple(pairs))

    def start(self) -> Bisect:
        """A search without marks."""
        return Bisect(_Points(self.pairs))

    def row(self, position: int) -> Row:
        """The row of one pair, measured once."""
        if position not in self.rows:
            self.rows[position] = next(self.comparer.rows([self.pairs[position]]))
        return self.rows[position]

    def mark(self, position: int) -> Mark:
        """The mark of one pair; a pair that agrees but holds no values, such as only NaN, is skipped."""
        row = self.row(position)
        if row.verdict.name == "drifts" and self.comparer.in_eight_bits:
            return "good"
        return MARKS[row.verdict.name] if row.diff is None or has_values(row.diff) else _mark_without_values(row)

    def ask(self, bisect: Bisect) -> Mark | None:
        """The mark of the probe; None when the search is done."""
        return None if bisect.probe is None else self.mark(bisect.probe)

    @cached_property
    def scanned(self) -> Mapping[int, Row]:
        """The rows that keep the comparison from agreeing, by position: culprits, and pairs that were not judged.

        Every pair is measured and judged with its history, since a pair that is judged by itself may seem wrong
        although it is not.
        """
        rows = list(self.comparer.rows(self.pairs))
        wrong = [*(row for row in rows if row.verdict.name == "unknown"), *culprits(rows)]
        ids = {id(row.pair) for row in wrong}
        position = {id(pair): at for at, pair in enumerate(self.pairs) if id(pair) in ids}
        release(rows)
        return {position[id(row.pair)]: row for row in wrong}

    @property
    def unproven(self) -> str:
        """Why pairs that diverge by themselves may be right after all: a sentence, or empty."""
        is_rounded = self.comparer.in_eight_bits and not self.comparer.limits.are_set
        return EIGHT_BIT_DOUBT if is_rounded and not self.scanned else ""


def _mark_without_values(row: Row) -> Mark:
    return "skip" if row.verdict.name == "agrees" else MARKS[row.verdict.name]


def _name(pair: Pair) -> str:
    port = pair.reference.port
    return pair.name if port in ("output", "output_0") else f"{pair.name} {port}"
