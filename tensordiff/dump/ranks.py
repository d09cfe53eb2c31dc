"""A dump of several ranks as one dump.

Every rank of a distributed run writes its own tensors. What all of them hold alike is replicated and kept once; a
difference between ranks is a finding. What they hold in parts is put together: along the axis that the dump itself
says is split (``split``), along the only axis in which shapes differ, or, where shapes are alike and values are
not, along the axis or as the sum that another tensor of the dump proves. What nothing proves stays in parts, each
under its rank, and is named as left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from tensordiff.dump.dtypes import Array
from tensordiff.dump.files import refuse_beyond_memory
from tensordiff.dump.model import Entry, Problem, Spec, StoredTensor
from tensordiff.errors import DumpError

Split = int | Literal["replicated", "sum"]
"""An axis, or how else the parts make the whole."""


class RankPart(NamedTuple):
    """What one rank holds of an entry; ``split`` where the dump says how it is divided."""

    rank: int
    entry: Entry
    split: Split | None = None


class JoinedRanks(NamedTuple):
    """The parts of several ranks as one tensor."""

    parts: tuple[StoredTensor, ...]
    split: Split

    @property
    def spec(self) -> Spec:
        """Shape and dtype of the whole."""
        first = self.parts[0].spec
        if self.split == "sum" or self.split == "replicated":
            return first
        length = sum(part.spec.shape[self.split] for part in self.parts)
        return Spec((*first.shape[: self.split], length, *first.shape[self.split + 1 :]), first.dtype)

    def read(self) -> Array:
        """The whole, in memory."""
        refuse_beyond_memory("", "the parts of all ranks together take", self.spec.nbytes, "compare rank by rank")
        arrays = [part.read() for part in self.parts]
        if self.split == "sum":
            whole = np.sum([array.astype(np.float64) for array in arrays], axis=0).astype(arrays[0].dtype)
        else:
            whole = np.concatenate(arrays, axis=int(self.split))
        result: Array = whole
        result.flags.writeable = False
        return result

    def __str__(self) -> str:
        how = "sum" if self.split == "sum" else f"cat along {self.split}"
        return f"{how} of {len(self.parts)} ranks"


@dataclass(frozen=True)
class Joined:
    """The entries of one dump, and what was found while the ranks were put together."""

    entries: tuple[Entry, ...]
    problems: tuple[Problem, ...]


def join_ranks(parts: Iterable[RankPart]) -> Joined:
    """The entries of all ranks as those of one run, in the order of the lowest rank that has each."""
    groups: dict[tuple[str, str, str, int, int], list[RankPart]] = defaultdict(list)
    for part in parts:
        item = part.entry
        groups[item.name, item.layer, item.port, item.call, item.step].append(part)
    wholes = _Wholes([sorted(group, key=lambda part: part.rank) for group in groups.values()])
    entries: list[Entry] = []
    problems: list[Problem] = []
    for group in wholes.groups:
        made, found = wholes.join(group)
        entries += made
        problems += found
    return Joined(tuple(entries), tuple(problems))


class _Wholes:
    """The groups of a dump, and the replicated tensors among them, which prove how others are split."""

    def __init__(self, groups: list[list[RankPart]]) -> None:
        self.groups = groups

    def join(self, group: Sequence[RankPart]) -> tuple[list[Entry], list[Problem]]:
        if len(group) == 1:
            return [group[0].entry], []
        first = group[0].entry
        try:
            split, why = self._split(group)
        except DumpError as error:
            return [first], [Problem(first.name, f"its ranks cannot be read together ({error})", is_unread=True)]
        if split is None:
            named = [part.entry._replace(layer=f"{first.layer}._ranks.{part.rank}") for part in group]
            named = [e._replace(name=f"{e.name}._ranks.{p.rank}") for e, p in zip(named, group, strict=True)]
            return named, [Problem(first.name, why, is_unread=True)]
        if split == "replicated":
            return [first], [Problem(first.name, why, is_unread=True)] if why else []
        return [first._replace(stored=JoinedRanks(tuple(part.entry.stored for part in group), split))], []

    def _split(self, group: Sequence[RankPart]) -> tuple[Split | None, str]:
        """How a group is divided, or None; and what is wrong, if anything is."""
        told = {part.split for part in group}
        specs = [part.entry.spec for part in group]
        if told == {"replicated"} or (told == {None} and len(set(specs)) == 1):
            differing = _first_difference([part.entry for part in group])
            if differing is None:
                return "replicated", ""
            a, b, most = group[0].rank, group[differing].rank, _distance(group[0].entry, group[differing].entry)
            if told == {"replicated"}:
                return "replicated", f"is replicated, and ranks {a} and {b} hold different values (by up to {most:.3g})"
            why = f"ranks {a} and {b} hold different values, and nothing proves how they are split"
            return self._proven(group), why
        if len(told) == 1 and (split := next(iter(told))) is not None:
            return (split, "") if _fits(specs, split) else (None, "its ranks hold shapes that do not fit together")
        axes = [axis for axis in range(len(specs[0].shape)) if _fits(specs, axis)]
        if len(axes) == 1:
            return axes[0], ""
        return None, "its ranks hold shapes that do not fit together"

    def _proven(self, group: Sequence[RankPart]) -> Split | None:
        """The axis or sum under which the parts make a tensor that all ranks hold alike, if there is one."""
        arrays = [part.entry.read() for part in group]
        if arrays[0].dtype.kind != "f" or arrays[0].size == 0 or arrays[0].size > 1 << 24:
            return None
        candidates: list[tuple[Split, Array]] = [("sum", np.sum([a.astype(np.float64) for a in arrays], axis=0))]
        candidates += ((axis, np.concatenate(arrays, axis=axis)) for axis in range(arrays[0].ndim))
        for split, whole in candidates:
            if any(_is_same(whole, other) for other in self._replicated(whole.shape, group[0].entry)):
                return split
        return None

    def _replicated(self, shape: tuple[int, ...], of: Entry) -> Iterator[Array]:
        for first in self._by_shape.get(shape, ()):
            if first.step == of.step:
                yield first.read()

    @cached_property
    def _by_shape(self) -> dict[tuple[int, ...], list[Entry]]:
        """Tensors that every rank holds alike, by shape."""
        found: dict[tuple[int, ...], list[Entry]] = defaultdict(list)
        for group in self.groups:
            entries = [part.entry for part in group]
            if len(group) > 1 and len({e.spec for e in entries}) == 1 and _first_difference(entries) is None:
                found[entries[0].spec.shape].append(entries[0])
        return found


def _fits(specs: Sequence[Spec], split: Split) -> bool:
    """Whether parts of these shapes make a whole along an axis: they differ in no other."""
    if isinstance(split, str):
        return len(set(specs)) == 1
    first = specs[0]
    return all(
        spec.dtype == first.dtype
        and len(spec.shape) == len(first.shape) > split
        and all(i == split or a == b for i, (a, b) in enumerate(zip(spec.shape, first.shape, strict=True)))
        for spec in specs
    )


def _first_difference(entries: Sequence[Entry]) -> int | None:
    """The first entry that holds other bytes than the one at the front."""
    first = np.ascontiguousarray(entries[0].read()).reshape(-1).view(np.uint8)
    for index, other in enumerate(entries[1:], 1):
        if not np.array_equal(first, np.ascontiguousarray(other.read()).reshape(-1).view(np.uint8)):
            return index
    return None


def _distance(one: Entry, other: Entry) -> float:
    with np.errstate(all="ignore"):
        a, b = one.read().astype(np.complex128), other.read().astype(np.complex128)
        return float(np.max(np.abs(a - b), initial=0.0))


def _is_same(whole: Array, other: Array) -> bool:
    """Whether a whole is another tensor but for rounding."""
    if whole.shape != other.shape or other.dtype.kind != "f":
        return False
    scale = float(np.abs(other).max(initial=0.0))
    room = 1e-5 if other.dtype.itemsize >= 4 else 2e-2
    return scale > 0 and bool(np.allclose(whole, other, rtol=0, atol=room * scale))
