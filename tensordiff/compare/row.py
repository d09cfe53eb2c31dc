"""A row: all that is known of one measured pair. What made it is in ``engine``; everyone after that reads it."""

from __future__ import annotations

from typing import NamedTuple

from tensordiff.align.match import Pair
from tensordiff.compare.sums import Diff
from tensordiff.compare.verdict import Verdict


class Row(NamedTuple):
    """One measured pair."""

    pair: Pair
    dtypes: tuple[str, str] | None
    """None where one could not be read."""
    shape: tuple[int, ...] | None
    """What both have after the views; None where they have none in common."""
    views: tuple[str, ...]
    diff: Diff | None
    injected: Diff | None
    golden_ratio: float | None
    verdict: Verdict
    amplification: float | None = None
    """The error over that of what came in; None where nothing is known to have come in, or no error."""
    downcast: float | None = None
    """``rel_l2`` against the reference cast to the candidate's coarser type; measured only of what stands out."""

    @property
    def is_input(self) -> bool:
        """Whether this pair is what a layer was given."""
        return self.pair.reference.is_input

    @property
    def is_exact(self) -> bool:
        """Whether these are, on both sides, numbers that nothing rounds: ids, positions, masks."""
        return self.dtypes is not None and all(name.startswith(("int", "uint", "bool")) for name in self.dtypes)


def unknown(pair: Pair, why: str, dtypes: tuple[str, str] | None = None) -> Row:
    """The row of a pair that could not be measured."""
    return Row(pair, dtypes, None, (), None, None, None, Verdict("unknown", why))
