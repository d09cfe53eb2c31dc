"""Decide whether a pair agrees and, if not, whether the incoming error explains it.

An error alone says little: it grows and shrinks along the depth of a healthy model. A layer is wrong if its output
stands clear of what precision explains (the floor) *and* of the error of its inputs. A user's own tolerance
(``limits``) overrides both. ``upstream_error`` knows the incoming error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, NamedTuple

from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.diff import Diff

VerdictName = Literal["agrees", "drifts", "diverges", "unknown"]


class Floor(NamedTuple):
    """Errors (rel_l2) up to ``agrees`` are rounding; no healthy layer exceeds ``diverges`` by itself."""

    agrees: float
    diverges: float


# For one layer of a healthy transformer, by the coarser type; measured on real runs, see docs/verdicts.md.
FLOORS = {
    "float64": Floor(1e-9, 1e-6),
    "float32": Floor(1e-5, 1e-3),
    "tf32": Floor(4e-3, 4e-2),  # of float32 matrix products in TF32; emulated, see docs/gpu.md
    "float16": Floor(5e-3, 5e-2),
    "bfloat16": Floor(3e-2, 1e-1),
    "8-bit activations": Floor(3e-2, 1e-1),
    "float8": Floor(1e-1, 3e-1),
    "exact": Floor(0.0, 0.0),
}
UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8,
         "8-bit activations": 2.0**-7, "float8": 2.0**-4}  # fmt: skip
"""Half a step of each type: the relative error of one rounding."""
EIGHT_BITS = "8-bit activations"
"""Used in place of a type for results computed from 8-bit integers with a scale per block or token."""
TF32 = "tf32"
"""Not a stored type: what float32 becomes when NVIDIA GPUs are allowed to compute in TF32."""
_COARSEST_FIRST = ("float8", EIGHT_BITS, "bfloat16", "float16", TF32, "float32", "float64")
GROWTH = 10.0
"""How much a healthy layer may amplify the incoming error."""
GROWTH_OF_FEW_BITS = 4.0
"""The same in types of 16 bits and fewer, where healthy errors lie close together and errors of bugs not far above."""
_HALF_WRONG = 0.5
"""Incoming error beyond which nothing can be said about the output."""
GOLDEN = Floor(2.0, 10.0)
"""Limits for the candidate's error divided by the reference's, both against a golden run."""


class Verdict(NamedTuple):
    """A verdict and its reason."""

    name: VerdictName
    why: str


_EQUAL = Verdict("agrees", "equal")  # shared, since a million pairs may be equal


@lru_cache(maxsize=512)
def floor_for(reference: str, candidate: str) -> tuple[str, Floor]:
    """The name of the coarser of two types, and its floor."""
    for name in _COARSEST_FIRST:
        if reference.startswith(name) or candidate.startswith(name):
            return name, FLOORS[name]
    if "complex" in reference + candidate:
        return "float32", FLOORS["float32"]
    return "exact", FLOORS["exact"]


def coarsest_floor(dtypes: Iterable[tuple[str, str]]) -> tuple[str, Floor]:
    """The name of the coarsest float type among pairs of types, and its floor; float32 if there is none."""
    kinds = {floor_for(*pair)[0] for pair in set(dtypes)}
    kind = next((name for name in _COARSEST_FIRST if name in kinds), "float32")
    return kind, FLOORS[kind]


def growth_of(kind: str) -> float:
    """How much a healthy layer may amplify the incoming error, in a type."""
    return GROWTH if kind in ("float32", "float64", "exact") else GROWTH_OF_FEW_BITS


@lru_cache(maxsize=512)
def growth_for(dtypes: tuple[str, str]) -> float:
    """How much a healthy layer may amplify the incoming error, in a pair of types."""
    return growth_of(floor_for(*dtypes)[0])


def exact_below(kind: str) -> float:
    """The error below which a run counts as exact: a ratio to less than a few roundings is meaningless."""
    return (4.0 if growth_of(kind) == GROWTH else 1.0) * UNITS[kind]


@lru_cache(maxsize=512)
def is_coarser(dtypes: tuple[str, str]) -> bool:
    """Whether the candidate has fewer bits than the reference."""
    kinds = [floor_for(name, name)[0] for name in dtypes]
    return "exact" not in kinds and _COARSEST_FIRST.index(kinds[1]) < _COARSEST_FIRST.index(kinds[0])


@lru_cache(maxsize=512)
def coarser(one: str, other: str) -> str:
    """The type with fewer bits; the first if one of them is not a float type or both have the same number of bits."""
    kinds = [floor_for(name, name)[0] for name in (one, other)]
    if "exact" in kinds:
        return one
    return other if _COARSEST_FIRST.index(kinds[1]) < _COARSEST_FIRST.index(kinds[0]) else one


def judge_diff(
    diff: Diff,
    dtypes: tuple[str, str],
    carried: float | None,
    limits: Limits,
    kl_div: float | None = None,
    usual: float | None = None,
) -> Verdict:
    """Judge one pair by its own limits (``Limits.for_pair``).

    ``carried`` is the incoming error, None if unknown. ``kl_div`` is measured only if it has a limit. ``usual`` is the
    worst error among the pairs of this run that agreed so far, None if none did.
    """
    if not diff.elements:
        return Verdict("agrees", "both are empty")
    if diff.apart:
        return _by_nonfinite(diff, carried, limits)
    if limits.are_set:
        broken = limits.broken_by(diff, kl_div)
        return Verdict("diverges", broken) if broken else Verdict("agrees", f"within the tolerance {limits.label}")
    kind, floor = floor_for(*dtypes)
    if diff.rel_l2 <= floor.agrees:
        return _EQUAL if diff.max_abs == 0 else Verdict("agrees", f"rel_l2 {diff.rel_l2:.1e} is rounding ({kind})")
    if kind == "exact":
        return Verdict("diverges", f"{diff.outside} of {diff.elements} integers differ")
    return _by_carried_error(diff.rel_l2, carried, usual, kind, floor)


def _by_nonfinite(diff: Diff, carried: float | None, limits: Limits) -> Verdict:
    """The verdict on NaN or infinity on one side only. They spread, so a layer whose input has them is not blamed."""
    if carried is None or math.isfinite(carried) or limits.are_set:
        return Verdict("diverges", _nonfinite(diff))
    return Verdict("drifts", f"{_nonfinite(diff)}; its input already had a rel_l2 of {carried}")


def _nonfinite(diff: Diff) -> str:
    if diff.nan[0] != diff.nan[1]:
        return f"NaN in {diff.nan[1]} places of the candidate, in {diff.nan[0]} of the reference"
    if diff.inf[0] != diff.inf[1]:
        return f"infinite in {diff.inf[1]} places of the candidate, in {diff.inf[0]} of the reference"
    return f"NaN or infinite in other places ({diff.apart} elements)"


def _by_carried_error(error: float, carried: float | None, usual: float | None, kind: str, floor: Floor) -> Verdict:
    growth = growth_of(kind)
    if carried is not None and not carried <= floor.agrees:  # true for NaN
        if error <= growth * carried or not carried <= _HALF_WRONG:
            before = (
                "its integer inputs differ" if carried == math.inf else f"its input already differs ({carried:.1e})"
            )
            return Verdict("drifts", f"rel_l2 {error:.1e}, because {before}")
        times = f"{error / carried:.0f} times the error of its input"
        return Verdict("diverges", f"rel_l2 {error:.1e} is {times} ({carried:.1e})")
    came = "" if carried is None else f", though its input agrees ({carried:.1e})"
    stands_out = usual is not None and error > growth * max(usual, carried or 0.0)
    if error <= max(floor.diverges, growth * (carried or 0.0)) and not stands_out:
        return Verdict("drifts", f"rel_l2 {error:.1e} is above rounding ({kind}){came}")
    return Verdict("diverges", f"rel_l2 {error:.1e}{came}")


# --- against a golden run -------------------------------------------------------------------------


class GoldenErrors(NamedTuple):
    """Errors (rel_l2) of both sides against a run of higher precision."""

    reference: float
    candidate: float

    @property
    def ratio(self) -> float | None:
        """The candidate's error divided by the reference's; None if the reference is exact."""
        return self.candidate / self.reference if self.reference > 0 else None

    def is_trusted(self, dtypes: tuple[str, str]) -> bool:
        """Whether the reference is as near to the golden run as its own precision explains.

        A golden run of other weights or another prompt is as far from the candidate as from the reference, however
        wrong the candidate is.
        """
        kind, floor = floor_for(dtypes[0], dtypes[0])
        return self.reference <= growth_of(kind) * floor.agrees

    def guarded(self, dtypes: tuple[str, str]) -> float | None:
        """The ratio, with every error counted as at least a few roundings; None for types for which it says nothing.

        A candidate with fewer bits than the reference is rightly further off, and integers are not rounded.
        """
        kind, _ = floor_for(*dtypes)
        if kind == "exact" or is_coarser(dtypes) or not math.isfinite(self.reference):
            return None
        return self.candidate / max(self.reference, exact_below(kind))


def judge_by_golden(golden: GoldenErrors, ratio: float, carried: float | None) -> Verdict:
    """Judge by a guarded ratio; ``carried`` is the ratio of the input."""
    told = f"{golden.candidate:.1e} from the golden, the reference {golden.reference:.1e}"
    if ratio <= GOLDEN.agrees:
        return Verdict("agrees", f"as close to the golden run as the reference is: {told}")
    if carried is not None and not ratio > GROWTH_OF_FEW_BITS * max(carried, 1.0):  # true for NaN
        return Verdict("drifts", f"{told}: {ratio:.3g} times as far, and its input {carried:.3g} times")
    came = "" if carried is None else f", though its input is only {carried:.3g} times as far"
    if ratio <= GOLDEN.diverges:
        return Verdict("drifts", f"{told}: {ratio:.3g} times as far{came}")
    return Verdict("diverges", f"{told}: {ratio:.3g} times as far{came}")
