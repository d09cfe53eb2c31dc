"""The pairs around a row, selected by their role: inputs and outputs of its call, and those of its parts.

Kinds that recompute a layer (``attention``, ``rope_tables``) need several of its tensors from both sides. Tensors are
read only on request, and large ones never.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from tensordiff.align.match import Pair
from tensordiff.compare.hint.axes import DumpedPairs
from tensordiff.compare.hint.sample import Floats
from tensordiff.compare.row import Row, values_of
from tensordiff.dump.dtypes import Array, is_float
from tensordiff.dump.model import Entry

MOST = 1 << 20
"""Largest number of elements of a tensor that is read for a hint."""
_MOST_PAIRS = 512


class Surroundings:
    """The call that a row belongs to, and the parts that ran inside it."""

    def __init__(self, row: Row, pairs: DumpedPairs) -> None:
        self.row = row
        self.layer = row.pair.reference.layer
        self.pairs = pairs

    @cached_property
    def own(self) -> list[Pair]:
        """Inputs and outputs of the call itself."""
        key = self.row.pair.reference.call_key
        return list(self.pairs.where(lambda other: other.call_key == key))

    @cached_property
    def within(self) -> list[Pair]:
        """Inputs and outputs of the parts, in order: of all their calls for the module's first call, and empty for
        others."""
        entry, prefix = self.row.pair.reference, f"{self.layer}."
        if entry.call != 1:
            return []  # it is unknown which calls of its parts belong to this call
        found = self.pairs.where(lambda other: other.step == entry.step and other.layer.startswith(prefix))
        return [pair for _, pair in zip(range(_MOST_PAIRS), found, strict=False)]

    def inputs(self, port: re.Pattern[str] | None = None) -> Iterator[Pair]:
        """Inputs of the call, optionally only those whose port matches."""
        return (p for p in self.own if p.reference.is_input and (port is None or port.search(p.reference.port)))

    @property
    def outputs(self) -> list[Pair]:
        """Outputs of the call."""
        return [pair for pair in self.own if not pair.reference.is_input]

    def part_output(self, name: re.Pattern[str]) -> Pair | None:
        """The last output of a part whose name within the module matches."""
        return next(self._parts(name, is_input=False), None)

    def part_input(self, name: re.Pattern[str]) -> Pair | None:
        """The first input of the last part whose name matches."""
        return next(self._parts(name, is_input=True), None)

    def _parts(self, name: re.Pattern[str], *, is_input: bool) -> Iterator[Pair]:
        cut = len(self.layer) + 1
        for pair in reversed(self.within):
            entry = pair.reference
            if entry.is_input == is_input and entry.call == 1 and name.fullmatch(entry.layer[cut:]):
                yield pair


def floats_of(pair: Pair | None) -> tuple[Floats, Floats] | None:
    """Both sides as float64; None if there is no such pair, or it is large, complex or not finite."""
    sides = None if pair is None else arrays_of(pair)
    if sides is None or not all(is_float(side.dtype) and side.dtype.kind != "c" for side in sides):
        return None
    ref, cand = (side.astype(np.float64) for side in sides)
    return (ref, cand) if np.isfinite(ref).all() and np.isfinite(cand).all() else None


def arrays_of(pair: Pair) -> tuple[Array, Array] | None:
    """Both sides in one shape; None if there is no common shape or they are large."""
    sides = values_of(pair)
    return None if sides is None or not 0 < sides[0].size <= MOST else sides


_CONVOLUTION = re.compile(r"Conv(?:Transpose)?[123]d$|GroupNorm$|BatchNorm[123]?d?$")
_CONVOLUTION_NAME = re.compile(r"(?:^|[._])conv(?:1d|2d|_in|_out)?\d?$")


def is_convolution(entry: Entry) -> bool:
    """Whether a layer has its channels on the second axis, by its class, or by its name if the class is unknown."""
    kind = entry.origin.module_class if entry.origin else ""
    return _CONVOLUTION.search(kind) is not None if kind else _CONVOLUTION_NAME.search(entry.layer) is not None
