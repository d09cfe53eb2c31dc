"""How a pair of element types is measured, decided once per pair of types.

The compiled pass reads float32, float64, bfloat16 and float16 in place. Everything else is converted, chunk by chunk,
to the narrowest float that holds it exactly. 64-bit integers have no such float, so they are measured in
``numpy_pass``, which subtracts them exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tensordiff.align.rules.tables import check_amount
from tensordiff.dump.dtypes import Array, DType, name_of

# bfloat16 and float16 enter under integer types of their own, since the compiler knows neither.
_ENTERS_AS = {"float32": "float32", "float64": "float64", "bfloat16": "uint16", "float16": "int16"}
_IN_PLACE = {
    ("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float16"), ("float64", "float64"),
    ("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "float16"), ("float16", "float32"),
}  # fmt: skip
_INTEGERS_IN_FLOAT32 = {"uint8", "int8", "uint16", "int16"}


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
        """What the user said: of two the missing one is 0, or it would let everything pass. None for neither."""
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


_TIES_SPLIT_BELOW = 1 << 17  # elements up to which ties of 16-bit values are told apart


class PassOptions(NamedTuple):
    """What a pass needs to know beside the values; pairs with equal options share a call of the compiled pass."""

    enter: tuple[DType, DType]
    """The array types under which a pair enters it."""
    tolerance: Tolerance
    splits_ties: bool
    """Whether errors that are equal to float32 rounding are told apart."""


class DtypePlan(NamedTuple):
    """How a pair of types is measured."""

    may_compile: bool
    in_place: bool
    is_wide: bool
    """Whether a side is float64, whose squares, and even differences, may overflow or vanish."""
    enter: tuple[DType, DType]
    """The array types under which the pair enters the compiled pass."""
    usual: PassOptions
    """How small pairs are measured when the user gave no tolerance ..."""
    usual_of_large: PassOptions
    """... and large ones: 16-bit values tie in nearly every block, and telling ties apart would double the time."""

    def options(self, elements: int, tolerance: Tolerance | None) -> PassOptions:
        """The options for a pair of this many elements; None takes the usual tolerance of the types."""
        usual = self.usual if elements < _TIES_SPLIT_BELOW else self.usual_of_large
        return usual if tolerance is None else usual._replace(tolerance=tolerance)

    def convert(self, ref: Array, cand: Array) -> tuple[Array, Array]:
        """Flat parts of the pair as the compiled pass takes them."""
        return _enter(ref, self.enter[0]), _enter(cand, self.enter[1])


def _enter(part: Array, dtype: DType) -> Array:
    if part.dtype.isnative and _ENTERS_AS.get(name_of(part.dtype)) == name_of(dtype):
        return np.require(part, requirements=["C", "A"]).view(dtype)
    return part.astype(dtype)


@lru_cache(maxsize=512)
def plan_for(ref: DType, cand: DType) -> DtypePlan:
    """Decide how two types are measured."""
    names = ref.name, cand.name
    in_place = names in _IN_PLACE and ref.isnative and cand.isnative
    if in_place:
        enter = np.dtype(_ENTERS_AS[names[0]]), np.dtype(_ENTERS_AS[names[1]])
    else:
        enter = (np.dtype("f4" if _fits_float32(ref) and _fits_float32(cand) else "f8"),) * 2
    usual = PassOptions(enter, usual_tolerance(*names), splits_ties=True)
    of_large = usual if max(ref.itemsize, cand.itemsize) > 2 else usual._replace(splits_ties=False)
    return DtypePlan(
        may_compile=not (is_long(ref) or is_long(cand)), in_place=in_place, is_wide="float64" in names,
        enter=enter, usual=usual, usual_of_large=of_large,
    )  # fmt: skip


def usual_tolerance(ref: str, cand: str) -> Tolerance:
    """torch.testing's tolerance for the coarser of two types; integers must be equal."""
    if any(name.startswith(("float8", "float6", "float4")) for name in (ref, cand)):
        return _USUAL_FLOAT8
    return next((tolerance for name, tolerance in _USUAL.items() if name in (ref, cand)), Tolerance())


def _fits_float32(dtype: DType) -> bool:
    return dtype.name in _INTEGERS_IN_FLOAT32 or (dtype.itemsize <= 4 and dtype.kind not in "iu")


def is_long(dtype: DType) -> bool:
    """Whether these are integers of 64 bits, whose last digits float64 does not hold."""
    return dtype.kind in "iu" and dtype.itemsize == 8
