"""Find tolerances that later runs must meet: measured on runs that agree, with a margin.

Pairs are grouped by port and by layer, ignoring layer numbers unless asked otherwise. A group gets what its worst pair
needs, and at least a few roundings of its type, since runs that are equal today may differ in the last bits. The caller
decides whether the runs are fit to learn from; a pair with NaN is refused here.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from decimal import ROUND_CEILING, Decimal
from typing import NamedTuple

import ml_dtypes
import numpy as np

from tensordiff.align.index import port_of
from tensordiff.align.rules.tables import ToleranceRule
from tensordiff.compare.judge.verdict import UNITS, floor_for
from tensordiff.compare.look.elements import element_errors
from tensordiff.compare.look.logits import compare_logits, has_distributions, is_logits
from tensordiff.compare.measure.dispatch import as_reals
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.compare.row import Row, values_of
from tensordiff.dump.dtypes import Array, is_float
from tensordiff.errors import AlignError, printable

_ROUNDINGS = 8
"""The smallest tolerance, in half units in the last place: four ulps."""
RTOLS = (0.0, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


class Need(NamedTuple):
    """What one or several pairs need in order to pass; the worst of them counts."""

    pairs: int
    rel_l2: float
    max_abs: float
    cos_dist: float
    kl_div: float | None
    """The KL divergence of the worst token; None if no pair holds logits."""
    atols: tuple[float, ...]
    """For each of ``RTOLS`` the smallest atol with which every element passes, including the margin."""

    def __or__(self, other: Need) -> Need:
        """The need of both groups together."""
        kl_divs = [one.kl_div for one in (self, other) if one.kl_div is not None]
        return Need(
            pairs=self.pairs + other.pairs,
            rel_l2=max(self.rel_l2, other.rel_l2),
            max_abs=max(self.max_abs, other.max_abs),
            cos_dist=max(self.cos_dist, other.cos_dist),
            kl_div=max(kl_divs, default=None),
            atols=tuple(map(max, self.atols, other.atols)),
        )


def need_of(row: Row, margin: float) -> Need | None:
    """What one pair needs; None if it must be equal (integers) or nothing was measured."""
    if row.diff is None or row.is_exact or not row.diff.elements:
        return None
    if any(row.diff.nan):
        raise AlignError(f"{_named(row)}: holds NaN, and a tolerance made from it would mean nothing; remove its cause")
    diff, sides = row.diff, values_of(row.pair)
    if sides is None:
        raise AlignError(f"{_named(row)}: was read once and cannot be read again; is something writing to the dumps?")
    need = Need(
        pairs=1, rel_l2=diff.rel_l2, max_abs=diff.max_abs, cos_dist=diff.cosine_distance,
        kl_div=_kl_div(row, *sides), atols=least_atols(*sides, margin),
    )  # fmt: skip
    for value in (*need[1:4], need.kl_div or 0.0, *need.atols):
        if not math.isfinite(value):
            raise AlignError(f"{_named(row)}: its error is {value}, which no tolerance allows; look at it with compare")
    return need | _least_need(row, sides[0], need)


def _least_need(row: Row, ref: Array, need: Need) -> Need:
    """The need of a few roundings in the pair's type."""
    unit = _ROUNDINGS * UNITS.get(floor_for(*(row.dtypes or ("", "")))[0], 0.0)
    largest = _largest(ref)
    return Need(
        pairs=0, rel_l2=unit, max_abs=unit * largest, cos_dist=unit**2,
        kl_div=None if need.kl_div is None else (unit * largest) ** 2,
        atols=tuple(max(0.0, unit - rtol) * largest for rtol in RTOLS),
    )  # fmt: skip


def _largest(ref: Array) -> float:
    """The largest magnitude of a value, ignoring the lowest number of a type, which masks use for -inf."""
    reals, _ = as_reals(ref, ref)
    may_mask = is_float(reals.dtype) and reals.dtype.itemsize > 1  # in 8 bits the largest are ordinary values
    masked = float(ml_dtypes.finfo(reals.dtype).max) / 2 if may_mask else math.inf
    parts = (size[size < masked] for _, r, _, _ in element_errors(reals, reals) for size in [np.abs(r)])
    return max((float(part.max()) for part in parts if part.size), default=0.0)


def _named(row: Row) -> str:
    return printable(f"{row.pair.reference.name} = {row.pair.candidate.name}")


def _kl_div(row: Row, ref: Array, cand: Array) -> float | None:
    if not is_logits(row.pair.name, row.pair.reference.port, ref.shape):
        return None
    return compare_logits(ref, cand).kl_div if has_distributions(ref) and has_distributions(cand) else None


def least_atols(ref: Array, cand: Array, margin: float = 0.0) -> tuple[float, ...]:
    """For each of ``RTOLS`` the smallest atol with which every element passes even if its error grows by the margin."""
    least = np.zeros(len(RTOLS))
    for _, r, _, error in element_errors(*as_reals(ref, cand)):
        with np.errstate(all="ignore"):
            error, size = error * (1 + margin), np.where(np.isfinite(r), np.abs(r), 0.0)
            least = np.maximum(least, [(error - rtol * size).max() for rtol in RTOLS])
    # The subtraction rounds, so add one step to make sure that atol + rtol * |ref| is not below the error.
    return tuple(math.nextafter(atol, math.inf) if atol > 0 else atol for atol in least.tolist())


def pareto_front(atols: Iterable[float]) -> tuple[Tolerance, ...]:
    """The Pareto front: the passing pairs of atol and rtol of which no other one is better in both."""
    kept: list[Tolerance] = []
    for rtol, atol in zip(RTOLS, map(round_up, atols), strict=True):
        if not kept or atol < kept[-1].atol:
            kept.append(Tolerance(atol, rtol))
    return tuple(kept)


def round_up(value: float, margin: float = 0.0) -> float:
    """A value plus a margin, rounded up to two significant digits."""
    if value == 0:
        return 0.0
    exact = Decimal(repr(float(value))) * (1 + Decimal(repr(margin)))
    digits = exact.quantize(Decimal(1).scaleb(exact.adjusted() - 1), ROUND_CEILING)
    return min(float(digits), sys.float_info.max)


def match_for(row: Row, *, per_layer: bool) -> str:
    """The regular expression of the group that a pair belongs to."""
    parts = row.pair.name.split(".")
    name = r"\.".join(r"\d+" if part.isdecimal() and not per_layer else re.escape(part) for part in parts)
    return f"^{name}-{re.escape(port_of(row.pair.reference.port))}$"


def tolerance_for(match: str, need: Need, margin: float) -> ToleranceRule:
    """A table that allows a need plus a margin. ``max_abs`` is the end of the Pareto front at rtol 0."""
    rel_l2, max_abs, cos_dist = (round_up(value, margin) for value in need[1:4])
    kl_div = None if need.kl_div is None else round_up(need.kl_div, margin)
    return ToleranceRule(match, rel_l2, max_abs=max_abs, cos_dist=cos_dist, kl_div=kl_div)
