"""A pair's two sides, mapped and seen in one shape: what everything that looks at values begins with.

A row: all that is known of one measured pair. What made it is in ``engine``; everyone after that reads it.
"""

from __future__ import annotations

from typing import NamedTuple

from tensordiff.align.match import Pair
from tensordiff.align.views import Views, reconcile
from tensordiff.compare.judge.verdict import Verdict
from tensordiff.compare.measure.diff import Diff
from tensordiff.dump.dtypes import Array, name_of
from tensordiff.errors import AlignError, DumpError


class PairValues(NamedTuple):
    """A pair mapped and seen in one shape."""

    pair: Pair
    views: Views
    ref: Array
    cand: Array


def read_pair(pair: Pair) -> PairValues | Row:
    """Map a pair; a row at once where nothing can be measured."""
    try:
        ref, cand = pair.reference.read(), pair.candidate.read()
    except (DumpError, AlignError) as error:
        return unknown_row(pair, str(error))
    shape = ref.shape
    if shape == cand.shape:
        return PairValues(pair, Views(shape), ref, cand)
    views = reconcile(shape, cand.shape)
    if views is None:
        why = f"shapes {list(ref.shape)} and {list(cand.shape)} need a view that only a rule can name"
        return unknown_row(pair, why, (name_of(ref.dtype), name_of(cand.dtype)))
    return PairValues(pair, views, views.apply(ref), views.apply(cand))


def values_of(pair: Pair) -> tuple[Array, Array] | None:
    """Both sides of a pair in one shape, to be looked at more closely; None where they cannot be had."""
    opened = read_pair(pair)
    return None if isinstance(opened, Row) else (opened.ref, opened.cand)


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


def unknown_row(pair: Pair, why: str, dtypes: tuple[str, str] | None = None) -> Row:
    """The row of a pair that could not be measured."""
    return Row(pair, dtypes, None, (), None, None, None, Verdict("unknown", why))
