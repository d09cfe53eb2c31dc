"""A tensor made of the parts that several ranks hold: along an axis, as a sum, or as one of several replicas."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from tensordiff.dump.dtypes import Array
from tensordiff.dump.files import refuse_beyond_memory
from tensordiff.dump.model import Entry, Spec, StoredTensor


class Zigzag(NamedTuple):
    """An axis whose chunks are dealt out from both ends: of two ranks, the first holds chunks 0 and 3 of four."""

    axis: int


Split = int | Zigzag | Literal["replicated", "sum"]
"""How the parts make the whole: the axis along which they follow one another, or another way."""


class MeshPlacement(NamedTuple):
    """A rank's position along one axis of the mesh, and what is split along it."""

    place: int
    split: Split


class RankPart(NamedTuple):
    """What one rank holds of an entry; ``placements`` if the dump says how it is split, outermost first."""

    rank: int
    entry: Entry
    placements: tuple[MeshPlacement, ...] | None = None


class JoinedRanks(NamedTuple):
    """The parts of several ranks as one tensor."""

    parts: tuple[StoredTensor, ...]
    split: Split
    pieces: tuple[int, ...] = ()
    """For a fused layer, the widths within one rank's part: each rank holds some query, key and value."""

    @property
    def spec(self) -> Spec:
        """Shape and dtype of the whole."""
        first = self.parts[0].spec
        axis = axis_of(self.split)
        if axis is None:
            return first
        length = sum(part.spec.shape[axis] for part in self.parts)
        return Spec((*first.shape[:axis], length, *first.shape[axis + 1 :]), first.dtype)

    def read(self) -> Array:
        """The whole, in memory."""
        refuse_beyond_memory("", "the parts of all ranks together take", self.spec.nbytes, "compare rank by rank")
        arrays = [part.read() for part in self.parts]
        axis = axis_of(self.split)
        if self.split == "replicated":
            return arrays[0]
        if axis is None:
            whole = np.sum([array.astype(np.float64) for array in arrays], axis=0).astype(arrays[0].dtype)
        elif isinstance(self.split, Zigzag):
            halves = [np.array_split(array, 2, axis=axis) for array in arrays]
            ends = [second for _, second in reversed(halves)]
            whole = np.concatenate([*(first for first, _ in halves), *ends], axis=axis)
        elif self.pieces:
            cuts = np.cumsum(self.pieces)[:-1]
            fused = zip(*(np.split(array, cuts, axis=axis) for array in arrays), strict=True)
            whole = np.concatenate([piece for ranks in fused for piece in ranks], axis=axis)
        else:
            whole = np.concatenate(arrays, axis=axis)
        result: Array = whole
        result.flags.writeable = False
        return result

    def __str__(self) -> str:
        axis = axis_of(self.split)
        count = f"{len(self.parts)} ranks"
        zigzag = ", zigzag" if isinstance(self.split, Zigzag) else ""
        inner = f" of {self.parts[0]}" if isinstance(self.parts[0], JoinedRanks) else ""
        return (f"{self.split} of {count}" if axis is None else f"{count}, axis {axis}") + zigzag + inner


def axis_of(split: Split) -> int | None:
    """The axis along which parts follow one another; None if they do not."""
    if isinstance(split, Zigzag):
        return split.axis
    return split if isinstance(split, int) else None


def fits(specs: list[Spec], split: Split) -> bool:
    """Whether parts of these shapes make a whole: along an axis, they may differ in no other."""
    axis = axis_of(split)
    if axis is None:
        return len(set(specs)) == 1
    first = specs[0]
    return all(
        spec.dtype == first.dtype
        and len(spec.shape) == len(first.shape) > axis
        and all(i == axis or a == b for i, (a, b) in enumerate(zip(spec.shape, first.shape, strict=True)))
        for spec in specs
    )
