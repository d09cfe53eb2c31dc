"""What answers a search's probes: a verdict, a person, a rerun. The search does not know which.

The verdict's oracle reads the tensors of the pairs it is asked about and of no others, and each once.
A pair is judged by itself here: what came into its layer is not known, so an error that would drift in a
scan may diverge. For a search both are bad.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tensordiff.align.match import Pair
from tensordiff.compare.engine import Engine
from tensordiff.compare.judge.verdict import VerdictName
from tensordiff.compare.row import Row
from tensordiff.search.bisect import Bisect, Mark, ProbePoint

Answer = Mark | Literal["undo"]
MARKS: dict[VerdictName, Mark] = {"agrees": "good", "drifts": "bad", "diverges": "bad", "unknown": "skip"}


class Oracle(Protocol):
    """Who judges."""

    def ask(self, bisect: Bisect) -> Answer | None:
        """Judge the probe, or take the last mark back; None where the oracle has no more to say."""


def search(bisect: Bisect, oracle: Oracle) -> Iterator[Bisect]:
    """Ask until the first bad place is isolated or the oracle stops; every state on the way."""
    while not bisect.is_done and (answer := oracle.ask(bisect)) is not None:
        bisect = bisect.undo() if answer == "undo" else bisect.mark(answer)
        yield bisect


@dataclass(frozen=True)
class VerdictOracle:
    """Judges a place by its pair's own verdict: the user's limits if there are any, else the floor."""

    engine: Engine
    pairs: tuple[Pair, ...]
    rows: dict[int, Row] = field(default_factory=dict)
    """What was measured, by position."""

    @classmethod
    def over(cls, engine: Engine, pairs: Sequence[Pair]) -> VerdictOracle:
        """Over the outputs, since what a layer was given is another's output; over all where there are none."""
        outputs = tuple(pair for pair in pairs if not pair.reference.is_input)
        return cls(engine, outputs or tuple(pairs))

    def start(self) -> Bisect:
        """A search in which nothing is marked."""
        return Bisect(tuple(ProbePoint(pair.index, _name(pair)) for pair in self.pairs))

    def row(self, position: int) -> Row:
        """Measure one pair, unless it was."""
        if position not in self.rows:
            self.rows[position] = next(self.engine.rows([self.pairs[position]]))
        return self.rows[position]

    def mark(self, position: int) -> Mark:
        """Judge one pair."""
        return MARKS[self.row(position).verdict.name]

    def ask(self, bisect: Bisect) -> Mark | None:
        """Judge the probe."""
        return None if bisect.probe is None else self.mark(bisect.probe)


def _name(pair: Pair) -> str:
    port = pair.reference.port
    return pair.name if port in ("output", "output_0") else f"{pair.name} {port}"
