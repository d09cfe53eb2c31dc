"""The reference's weights as a quantized candidate rounds them, as far as its quantization explains the difference.

A quantized model rightly differs from its reference. The reference, run with the candidate's weights, should not: any
difference that remains is not due to quantization. A weight that differs by more than its quantization explains (it is
swapped, scaled, not loaded) is not taken, so that its layer is still found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Dump
from tensordiff.errors import AlignError, DumpError
from tensordiff.weights.measure import measure_pair
from tensordiff.weights.packed import quantization_of
from tensordiff.weights.pairing import pair_parameters
from tensordiff.weights.parameters import holds_parameters, parameters_of
from tensordiff.weights.quantization import GGML, Quantization
from tensordiff.weights.sides import ParameterPair

_LAID_OUT_AS_IS = {(), ("cat",)}


@dataclass
class Rounding:
    """What was taken from a candidate."""

    kinds: dict[str, Quantization] = field(default_factory=dict)
    """Its quantizations, by name."""
    taken: list[str] = field(default_factory=list)
    """Parameters of the reference that now hold the candidate's quantized values."""
    left: list[str] = field(default_factory=list)
    """Parameters that differ by more than the candidate's quantization explains, or that were not compared."""

    @property
    def sentence(self) -> str:
        """``4-bit weights (Q4_K, Q6_K)``."""
        return quantized_weights(self.kinds)


class RoundedValue(NamedTuple):
    """The candidate's values of one parameter."""

    name: str
    values: Array


def quantized_weights(kinds: Mapping[str, Quantization]) -> str:
    """How coarse weights are, in words: ``4-bit weights (Q4_K, Q6_K)``."""
    bits = min((kind.bits or 8 for kind in kinds.values()), default=0)
    return f"{bits:g}-bit weights ({', '.join(sorted(kinds))})"


def quantizations(dump: Dump) -> dict[str, Quantization]:
    """The quantizations among a checkpoint's parameters, by name; empty if it holds none."""
    if not holds_parameters(dump):
        return {}
    return {item.quantization.name: item.quantization for item in parameters_of(dump) if item.quantization}


def rounds_activations(kinds: Mapping[str, Quantization]) -> bool:
    """Whether activations are rounded to 8 bits before they are multiplied with such weights, as llama.cpp does."""
    return any(kind in GGML.values() for kind in kinds.values())


def round_as(reference: Dump, candidate: Dump, rounding: Rounding) -> Iterator[RoundedValue]:
    """Yield the candidate's values for each parameter of the reference that its dtypes explain; fills ``rounding``."""
    for pair in pair_parameters(reference, candidate).pairs:
        quantization = quantization_of(pair.candidate.stored)
        names = [item.name for item in pair.reference.parameters]
        if not _is_explained(pair):
            rounding.left += names
            continue
        if quantization is not None:
            rounding.kinds[quantization.name] = quantization
            rounding.taken += names
        start, values = 0, np.asarray(pair.candidate.stored.read())
        for item, rows in zip(pair.reference.parameters, pair.reference.part_rows, strict=True):
            yield RoundedValue(item.name, values[start : start + rows] if len(names) > 1 else values)
            start += rows


def _is_explained(pair: ParameterPair) -> bool:
    if pair.mismatch or pair.extra_rows or pair.is_tied or pair.reference.views not in _LAID_OUT_AS_IS:
        return False
    try:
        return measure_pair(pair.reference.stored, pair.candidate.stored).explained is not None
    except (DumpError, AlignError):
        return False
