"""A differing pair as tables of rows and columns, for the tests of the catalogue, and a search for equal parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tensordiff.dump.model import StoredTensor
from tensordiff.errors import AlignError, DumpError
from tensordiff.weights.parameters import Parameter
from tensordiff.weights.samples import Floats, SampleIndex, are_alike, as_floats, slack_of
from tensordiff.weights.sides import ParameterPair
from tensordiff.weights.views import read_rows, row_ranges

Order = NDArray[np.int64]

MOST_ELEMENTS = 1 << 24
"""Elements of a side that a hint examines; of a larger table, all rows and as many columns as fit."""
_FINGERPRINT_COLUMNS = 64


@dataclass(frozen=True, eq=False)
class PairTables:
    """Both sides of a pair as tables."""

    pair: ParameterPair
    ref: Floats
    """[rows, columns]; a vector has one column, a stack has the rows of all its parts."""
    cand: Floats
    slack: float
    """The relative error that dtypes explain."""
    reference: ParameterFinder
    candidate: ParameterFinder

    @cached_property
    def parts(self) -> int:
        """How many parts a stack of experts has; 1 for a matrix."""
        shape = self.pair.reference.stored.spec.shape
        return shape[0] if len(shape) == 3 else 1

    @property
    def is_whole(self) -> bool:
        """Whether the tables hold all columns; those of large parameters hold only the first."""
        return self.ref.size == self.pair.reference.stored.spec.size

    @cached_property
    def equal_rows(self) -> NDArray[np.bool_]:
        """The rows that are the same on both sides."""
        return rows_alike(self.cand, self.ref, self.slack)

    @cached_property
    def equal_columns(self) -> NDArray[np.bool_]:
        """The columns that are the same on both sides."""
        return rows_alike(self.cand.T, self.ref.T, self.slack)

    def fits(self, made: Floats) -> bool:
        """Whether values made from the reference's equal the candidate's."""
        return are_alike(self.cand, made, self.slack)


def rows_alike(one: Floats, other: Floats, slack: float) -> NDArray[np.bool_]:
    """For each row, whether it is the same up to rounding."""
    error = np.abs(one - other).max(axis=1, initial=0.0)
    size = np.abs(other).max(axis=1, initial=0.0)
    alike: NDArray[np.bool_] = error <= slack * size
    return alike


def read_tables(pair: ParameterPair, reference: ParameterFinder, candidate: ParameterFinder) -> PairTables:
    """Read as much of a pair as a hint needs."""
    ref, cand = table(pair.reference.stored), table(pair.candidate.stored)
    slack = slack_of(pair.reference.stored, pair.candidate.stored)
    return PairTables(pair, ref, cand, slack, reference, candidate)


def table(stored: StoredTensor) -> Floats:
    """Rows and columns of a tensor, finite and in float32."""
    shape = stored.spec.shape
    if len(shape) < 2:
        return as_floats(stored.read().reshape(-1)[:MOST_ELEMENTS])[:, None]
    parts, rows, columns = (shape[0], *shape[1:]) if len(shape) == 3 else (1, shape[0], int(np.prod(shape[1:])))
    width = max(1, min(columns, MOST_ELEMENTS // max(1, parts * rows)))
    tables = []
    for start, stop in row_ranges(shape):
        block = read_rows(stored, start, stop)
        tables.append(as_floats(np.ascontiguousarray(block.reshape(-1, columns)[:, :width])))
    return np.concatenate(tables) if len(tables) != 1 else tables[0]


@dataclass(eq=False)
class ParameterFinder:
    """All parameters of one side, to find those that hold given values."""

    items: Sequence[Parameter]
    _fingerprints: dict[int, Floats | None] = field(default_factory=dict)
    _indexes: dict[tuple[int, ...], SampleIndex] = field(default_factory=dict)

    @cached_property
    def _by_shape(self) -> dict[tuple[int, ...], list[Parameter]]:
        by_shape: dict[tuple[int, ...], list[Parameter]] = defaultdict(list)
        for item in self.items:
            try:
                by_shape[item.spec.shape].append(item)
            except DumpError:
                continue
        return by_shape

    def fingerprint(self, item: Parameter) -> Floats | None:
        """A few values of a parameter; None if it cannot be read."""
        if id(item) not in self._fingerprints:
            try:
                self._fingerprints[id(item)] = fingerprint_of(item.stored)
            except (DumpError, AlignError):
                self._fingerprints[id(item)] = None
        return self._fingerprints[id(item)]

    def holding(self, stored: StoredTensor, is_other: Callable[[Parameter], bool] = lambda _: True) -> list[Parameter]:
        """The parameters of the same shape that hold the values of a tensor."""
        try:
            wanted = fingerprint_of(stored)
        except (DumpError, AlignError):
            return []
        if float(wanted.std()) <= 1e-4 * float(np.abs(wanted).max(initial=0.0)):
            return []  # ones, zeros: they prove nothing
        holders = []
        for item in self._near(stored, wanted):
            fingerprint = self.fingerprint(item) if is_other(item) else None
            if fingerprint is not None and are_alike(wanted, fingerprint, slack_of(stored, item.stored)):
                holders.append(item)
        return holders

    def _near(self, stored: StoredTensor, wanted: Floats) -> list[Parameter]:
        shape = stored.spec.shape
        items = self._by_shape.get(shape, [])
        if not items:
            return []
        if shape not in self._indexes:
            coarsest = max(slack_of(item.stored) for item in items)
            self._indexes[shape] = SampleIndex([self.fingerprint(item) for item in items], coarsest)
        return [items[k] for k in self._indexes[shape].near(wanted, slack_of(stored))]


def fingerprint_of(stored: StoredTensor) -> Floats:
    """A few values from the beginning, the middle and the end."""
    shape = stored.spec.shape
    if len(shape) < 2:
        return as_floats(stored.read().reshape(-1)[: 4 * _FINGERPRINT_COLUMNS])[None, :]
    places = sorted({0, shape[0] // 2, shape[0] - 1})
    return np.stack([as_floats(read_rows(stored, k, k + 1).reshape(-1)[:_FINGERPRINT_COLUMNS]) for k in places])
