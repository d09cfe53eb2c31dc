"""Whether a pair agrees, and if not, whether what came in explains it.

An error alone says little: it grows and shrinks along the depth of a healthy model. A layer is
wrong when its output stands clear of what precision explains (the floor) *and* of what its inputs
carried in. A user's own tolerance beats all of it; what the user said is in ``limits``.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from tensordiff.compare.limits import Limits as Limits
from tensordiff.compare.sums import Diff

VerdictName = Literal["agrees", "drifts", "diverges", "unknown"]


class Floor(NamedTuple):
    """Errors (rel_l2) up to ``agrees`` are rounding; beyond ``diverges`` no healthy layer goes by itself."""

    agrees: float
    diverges: float


# For one layer of a healthy transformer, by the coarser type; measured on real runs, see docs/verdicts.md.
FLOORS = {
    "float64": Floor(1e-9, 1e-6),
    "float32": Floor(1e-5, 1e-3),
    "float16": Floor(5e-3, 5e-2),
    "bfloat16": Floor(3e-2, 1e-1),
    "float8": Floor(1e-1, 3e-1),
    "exact": Floor(0.0, 0.0),
}
_COARSEST_FIRST = ("float8", "bfloat16", "float16", "float32", "float64")
GROWTH = 10.0
"""How much a healthy layer may multiply the error that came in."""


class Verdict(NamedTuple):
    """A judgement and its reason."""

    name: VerdictName
    why: str


def floor_for(reference: str, candidate: str) -> tuple[str, Floor]:
    """The floor of the coarser of two types, and that type's name."""
    for name in _COARSEST_FIRST:
        if reference.startswith(name) or candidate.startswith(name):
            return name, FLOORS[name]
    if "complex" in reference + candidate:
        return "float32", FLOORS["float32"]
    return "exact", FLOORS["exact"]


def judge(
    diff: Diff, dtypes: tuple[str, str], carried: float | None, limits: Limits, kl_div: float | None = None
) -> Verdict:
    """Judge one pair by the limits that are its own (``Limits.for_pair``).

    ``carried`` is the error of what came in, None where nothing is known of it; ``kl_div`` is measured only where
    there is a limit to it.
    """
    if not diff.elements:
        return Verdict("agrees", "both are empty")
    if diff.apart:
        return _by_odd(diff, carried, limits)
    if limits.are_set:
        broken = limits.broken_by(diff, kl_div)
        return Verdict("diverges", broken) if broken else Verdict("agrees", f"within the tolerance {limits.said}")
    kind, floor = floor_for(*dtypes)
    if diff.rel_l2 <= floor.agrees:
        return Verdict("agrees", "equal" if diff.max_abs == 0 else f"rel_l2 {diff.rel_l2:.1e} is rounding ({kind})")
    if kind == "exact":
        return Verdict("diverges", f"{diff.outside} of {diff.elements} integers differ")
    return _by_what_came_in(diff.rel_l2, carried, kind, floor)


def _by_odd(diff: Diff, carried: float | None, limits: Limits) -> Verdict:
    """NaN and infinities that stand apart; they spread, so none is a layer's own once they came in."""
    if carried is None or math.isfinite(carried) or limits.are_set:
        return Verdict("diverges", _odd(diff))
    return Verdict("drifts", f"{_odd(diff)}; a rel_l2 of {carried} came in")


def _odd(diff: Diff) -> str:
    if diff.nan[0] != diff.nan[1]:
        return f"NaN in {diff.nan[1]} places of the candidate, in {diff.nan[0]} of the reference"
    if diff.inf[0] != diff.inf[1]:
        return f"infinite in {diff.inf[1]} places of the candidate, in {diff.inf[0]} of the reference"
    return f"NaN or infinite in other places ({diff.apart} stand apart)"


def _by_what_came_in(error: float, carried: float | None, kind: str, floor: Floor) -> Verdict:
    if carried is not None and not carried <= floor.agrees:  # a NaN is not
        if error <= GROWTH * carried or not math.isfinite(carried):
            return Verdict("drifts", f"rel_l2 {error:.1e}, and {carried:.1e} came in")
        return Verdict("diverges", f"rel_l2 {error:.1e} is {error / carried:.0f} times what came in ({carried:.1e})")
    came = "" if carried is None else f", though what came in agrees ({carried:.1e})"
    if error <= floor.diverges:
        return Verdict("drifts", f"rel_l2 {error:.1e} is above rounding ({kind}){came}")
    return Verdict("diverges", f"rel_l2 {error:.1e}{came}")
