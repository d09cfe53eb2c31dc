"""What tolerance would pass: measured on runs that agree, with a margin, so that a later run cannot be worse.

Pairs are grouped by layer, its numbers standing for any, and by port; a group needs what its worst pair needs.
Whether runs are fit
to learn from is for the caller to know; what cannot be told of a pair (NaN) is refused here.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from decimal import ROUND_CEILING, Decimal
from typing import NamedTuple

import numpy as np

from tensordiff.align.index import port_of
from tensordiff.align.rules.tables import ToleranceRule
from tensordiff.compare.look.elements import element_errors
from tensordiff.compare.look.logits import compare_logits, has_distributions, is_logits
from tensordiff.compare.measure.dispatch import as_reals
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.compare.row import Row, values_of
from tensordiff.dump.dtypes import Array
from tensordiff.errors import AlignError, printable

RTOLS = (0.0, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


class Need(NamedTuple):
    """What pairs need so as to pass, as measured; of several, the worst."""

    pairs: int
    rel_l2: float
    max_abs: float
    cos_dist: float
    kl_div: float | None
    """Of the worst token; None where none are logits."""
    atols: tuple[float, ...]
    """For each of ``RTOLS`` the least atol with which every element passes, the margin included."""

    def __or__(self, other: Need) -> Need:
        """What these pairs and others need."""
        kl_divs = [one.kl_div for one in (self, other) if one.kl_div is not None]
        return Need(
            self.pairs + other.pairs,
            max(self.rel_l2, other.rel_l2),
            max(self.max_abs, other.max_abs),
            max(self.cos_dist, other.cos_dist),
            max(kl_divs, default=None),
            tuple(map(max, self.atols, other.atols)),
        )


def need_of(row: Row, margin: float) -> Need | None:
    """What one pair needs; None where equal is all that will do, or there is nothing to measure."""
    if row.diff is None or row.is_exact or not row.diff.elements:
        return None
    if any(row.diff.nan):
        raise AlignError(f"{_named(row)}: holds NaN, and a tolerance made from it would mean nothing; remove its cause")
    diff, sides = row.diff, values_of(row.pair)
    if sides is None:
        raise AlignError(f"{_named(row)}: was read once and cannot be read again; is something writing to the dumps?")
    found = Need(1, diff.rel_l2, diff.max_abs, diff.cosine_distance, _kl_div(row, *sides), least_atols(*sides, margin))
    for value in (*found[1:4], found.kl_div or 0.0, *found.atols):
        if not math.isfinite(value):
            raise AlignError(f"{_named(row)}: its error is {value}, which no tolerance allows; look at it with compare")
    return found


def _named(row: Row) -> str:
    return printable(f"{row.pair.reference.name} = {row.pair.candidate.name}")


def _kl_div(row: Row, ref: Array, cand: Array) -> float | None:
    if not is_logits(row.pair.name, row.pair.reference.port, ref.shape):
        return None
    return compare_logits(ref, cand).kl_div if has_distributions(ref) and has_distributions(cand) else None


def least_atols(ref: Array, cand: Array, margin: float = 0.0) -> tuple[float, ...]:
    """For each of ``RTOLS`` the least atol with which every element passes, were its error larger by the margin."""
    least = np.zeros(len(RTOLS))
    for _, r, _, error in element_errors(*as_reals(ref, cand)):
        with np.errstate(all="ignore"):
            error, size = error * (1 + margin), np.where(np.isfinite(r), np.abs(r), 0.0)
            least = np.maximum(least, [(error - rtol * size).max() for rtol in RTOLS])
    # The subtraction rounds: one step up, and atol + rtol * |ref| is no less than the error.
    return tuple(math.nextafter(atol, math.inf) if atol > 0 else atol for atol in least.tolist())


def front(atols: Iterable[float]) -> tuple[Tolerance, ...]:
    """The Pareto front: pairs of atol and rtol that all pass, none of which is worse than another in both."""
    kept: list[Tolerance] = []
    for rtol, atol in zip(RTOLS, map(round_up, atols), strict=True):
        if not kept or atol < kept[-1].atol:
            kept.append(Tolerance(atol, rtol))
    return tuple(kept)


def round_up(value: float, margin: float = 0.0) -> float:
    """A value with a margin, in two significant digits, never below."""
    if value == 0:
        return 0.0
    exact = Decimal(repr(float(value))) * (1 + Decimal(repr(margin)))
    digits = exact.quantize(Decimal(1).scaleb(exact.adjusted() - 1), ROUND_CEILING)
    return min(float(digits), sys.float_info.max)


def match_for(row: Row, *, per_layer: bool) -> str:
    """The expression of the group that a pair belongs to."""
    parts = row.pair.name.split(".")
    name = r"\.".join(r"\d+" if part.isdecimal() and not per_layer else re.escape(part) for part in parts)
    return f"^{name}-{re.escape(port_of(row.pair.reference.port))}$"


def tolerance_for(match: str, need: Need, margin: float) -> ToleranceRule:
    """A table that allows what is needed and a margin. ``max_abs`` stands for the front's end at rtol 0."""
    rel_l2, max_abs, cos_dist = (round_up(value, margin) for value in need[1:4])
    kl_div = None if need.kl_div is None else round_up(need.kl_div, margin)
    return ToleranceRule(match, rel_l2, max_abs=max_abs, cos_dist=cos_dist, kl_div=kl_div)
