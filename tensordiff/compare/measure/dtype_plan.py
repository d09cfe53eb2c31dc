"""How to measure a pair of element types, decided once per pair of types: its tolerance, and how to treat ties."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tensordiff.align.rules.tables import check_amount
from tensordiff.dump.dtypes import DType


@dataclass(frozen=True)
class Tolerance:
    """An element is outside when |cand - ref| > atol + rtol * |ref|."""

    atol: float = 0.0
    rtol: float = 0.0

    def __post_init__(self) -> None:
        check_amount("atol", self.atol)
        check_amount("rtol", self.rtol)

    @classmethod
    def of(cls, atol: float | None, rtol: float | None) -> Tolerance | None:
        """A tolerance from the user's numbers; a missing one is 0, or it would let everything pass. None if both are
        missing."""
        if atol is None and rtol is None:
            return None
        return cls(0.0 if atol is None else atol, 0.0 if rtol is None else rtol)


# torch.testing's defaults, coarsest type first.
_USUAL = {
    "bfloat16": Tolerance(1e-5, 1.6e-2),
    "float16": Tolerance(1e-5, 1e-3),
    "float32": Tolerance(1e-5, 1.3e-6),
    "float64": Tolerance(1e-7, 1e-7),
}
_USUAL_FLOAT8 = Tolerance(1e-5, 0.125)


_TIES_SPLIT_BELOW = 1 << 17  # number of elements up to which ties of 16-bit values are resolved


class PassOptions(NamedTuple):
    """What a pass needs to know besides the values and their types."""

    tolerance: Tolerance
    splits_ties: bool
    """Whether errors that are equal after rounding to float32 are told apart."""


class DtypePlan(NamedTuple):
    """How a pair of types is measured."""

    is_wide: bool
    """Whether a side is float64, whose squares, and even differences, may overflow or vanish."""
    usual: PassOptions
    """Options for small pairs if the user gave no tolerance."""
    usual_of_large: PassOptions
    """Options for large pairs: 16-bit values tie in nearly every block, and resolving ties would double the time."""

    def options(self, elements: int, tolerance: Tolerance | None) -> PassOptions:
        """The options for a pair of this many elements; None uses the usual tolerance of the types."""
        usual = self.usual if elements < _TIES_SPLIT_BELOW else self.usual_of_large
        return usual if tolerance is None else usual._replace(tolerance=tolerance)


@lru_cache(maxsize=512)
def plan_for(ref: DType, cand: DType) -> DtypePlan:
    """Decide how two types are measured."""
    names = ref.name, cand.name
    usual = PassOptions(usual_tolerance(*names), splits_ties=True)
    of_large = usual if max(ref.itemsize, cand.itemsize) > 2 else usual._replace(splits_ties=False)
    return DtypePlan(is_wide="float64" in names, usual=usual, usual_of_large=of_large)


def usual_tolerance(ref: str, cand: str) -> Tolerance:
    """torch.testing's tolerance for the coarser of two types; integers must be equal."""
    if any(name.startswith(("float8", "float6", "float4")) for name in (ref, cand)):
        return _USUAL_FLOAT8
    return next((tolerance for name, tolerance in _USUAL.items() if name in (ref, cand)), Tolerance())


def is_long(dtype: DType) -> bool:
    """Whether a type has 64-bit integers, whose last digits float64 cannot hold."""
    return dtype.kind in "iu" and dtype.itemsize == 8
