"""Evidence: which tensors of two runs are the same by their values.

Only some tensors are read: the first few instances of every place that is repeated, and not more bytes than a person
would wait for. Tensors that are equal, in whatever layout, form one class. A class with entries of both sides proves
that they are the same tensor. Which entry corresponds to which is for ``nodes`` to decide, since a norm's output is
also the input of three projections. Tensors that may be equal by chance prove nothing: integers, and tensors with few
distinct values.

Beyond the first error nothing is equal any more. There ``resemblance`` says which classes are probably the same; these
are joined like equal ones, and prove nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tensordiff.align.by_value import Fingerprint, common_tolerance, fingerprint, rel_l2
from tensordiff.align.expression import evaluate_view
from tensordiff.align.index import Index, port_of
from tensordiff.align.learn.outline import Outline, outlines
from tensordiff.align.learn.possible_views import possible_views
from tensordiff.align.operations import is_operation
from tensordiff.align.views import reconcile
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Entry
from tensordiff.errors import AlignError, DumpError

INSTANCES = 4
"""How many instances of a repeated place are read."""
_CALLS = 64
"""How many calls of a layer without a number are read. Functions of a tensor library are called wherever they are
needed, so a few calls say nothing about the rest."""
MAX_BYTES = 192 << 20
"""How many bytes are read of each side."""
_FEW_VALUES = 6
_STILL_ALIKE = 0.8
"""The share of the likeness of two classes that two of their entries must have in a layout; a wrong layout leaves
little."""


class Place(NamedTuple):
    """Where an entry stands: the outline of its layer and its port; calls count like numbers."""

    pieces: tuple[str, ...]
    port: str


@dataclass(frozen=True, eq=False)
class Side:
    """One dump, in one step, with the names it has itself."""

    index: Index
    step: int
    least: int = 0
    """How many entries are looked at, if there are as many."""

    def with_least(self, least: int) -> Side:
        """The same side with at least so many entries to look at; what is known about their names is kept."""
        other = Side(self.index, self.step, least)
        vars(other).update({name: getattr(self, name) for name in ("all_entries", "outlines", "_instances")})
        return other

    @cached_property
    def all_entries(self) -> list[Entry]:
        """The entries of the step that a rule can name. Operations are left out: they are paired by their sequence."""
        named = (entry for entry in self.index.dump.entries if entry.layer)
        return [e for e in named if e.step == self.step and not is_operation(e.layer)]

    @cached_property
    def outlines(self) -> dict[str, Outline]:
        """The outline of each layer."""
        ports: dict[str, set[str]] = defaultdict(set)
        for entry in self.all_entries:
            ports[entry.layer].add(port_of(entry.port))
        return outlines(ports)

    def outline(self, entry: Entry) -> Outline:
        """The outline of an entry's layer."""
        return self.outlines[entry.layer]

    @cached_property
    def _instances(self) -> list[tuple[int, int, Entry]]:
        """All entries, each with the rank of its instance among those of the same place, and its position."""
        places: dict[Place, list[tuple[int, Entry]]] = defaultdict(list)
        for k, entry in enumerate(self.all_entries):
            places[Place(self.outline(entry).pieces, port_of(entry.port))].append((k, entry))
        instances: list[tuple[int, int, Entry]] = []
        for entries in places.values():
            entries.sort(key=lambda item: (self.outline(item[1]).numbers, item[1].call))
            first = 1 if self.outline(entries[0][1]).numbers else _CALLS
            instances += [(max(0, rank - first + 1), k, entry) for rank, (k, entry) in enumerate(entries)]
        return sorted(instances, key=lambda item: item[:2])

    @property
    def count(self) -> int:
        """How many entries are among the first instances."""
        return sum(rank < INSTANCES for rank, _, _ in self._instances)

    @cached_property
    def entries(self) -> list[Entry]:
        """The entries that are looked at, in order: the first instances of every place."""
        limit = max((rank for rank, _, _ in self._instances[: self.least]), default=0)
        chosen = [(k, entry) for rank, k, entry in self._instances if rank < max(INSTANCES, limit)]
        return [entry for _, entry in sorted(chosen, key=lambda item: item[0])]

    @cached_property
    def position(self) -> dict[int, int]:
        """Where each entry stands in the dump, by its id."""
        return {id(entry): k for k, entry in enumerate(self.all_entries)}

    @cached_property
    def sample(self) -> list[Entry]:
        """The entries whose values are read: first instances first, as far as the bytes allow."""
        chosen = {id(entry) for entry in self.entries}
        return list(_within_budget(entry for _, _, entry in self._instances if id(entry) in chosen))


def _within_budget(entries: Iterable[Entry]) -> Iterable[Entry]:
    left = MAX_BYTES
    for entry in entries:
        try:
            left -= entry.spec.nbytes
        except (DumpError, AlignError):
            continue  # measuring reports it
        if left < 0:
            return
        yield entry


@dataclass(eq=False)
class ValueClass:
    """Tensors that are equal; ``members`` are those of the reference, then those of the candidate."""

    head: Fingerprint
    is_weak: bool
    members: tuple[list[Fingerprint], list[Fingerprint]]
    likeness: float = 1.0
    """How alike the two sides are: 1 if they are equal, less if they resemble each other beyond an error."""

    @property
    def is_shared(self) -> bool:
        """Whether both sides have it."""
        return bool(self.members[0] and self.members[1])

    @property
    def is_proof(self) -> bool:
        """Whether it proves that its entries are the same tensor."""
        return self.is_shared and not self.is_weak and self.likeness == 1.0


@dataclass(frozen=True, eq=False)
class Evidence:
    """The value classes of two sides."""

    reference: Side
    candidate: Side
    fingerprints: tuple[list[Fingerprint], list[Fingerprint]]
    """The fingerprints of both sides."""
    classes: list[ValueClass]
    """All classes."""

    @classmethod
    def of(cls, reference: Side, candidate: Side) -> Evidence:
        """Find what is equal on two sides."""
        ours, theirs = (
            [item for entry in side.sample if (item := fingerprint(entry)) is not None]
            for side in (reference, candidate)
        )
        return cls(reference, candidate, (ours, theirs), _classes((ours, theirs)))

    @property
    def is_ordered(self) -> bool:
        """Whether both dumps say in which order their layers ran."""
        return self.reference.index.dump.ordered and self.candidate.index.dump.ordered

    def with_likely_matches(self, likely: Iterable[tuple[ValueClass, ValueClass, float]]) -> Evidence:
        """Join pairs of classes, one of the reference and one of the candidate, each with how alike they are."""
        joined = {id(ours): (theirs, alike) for ours, theirs, alike in likely}
        absorbed = {id(theirs) for theirs, _ in joined.values()}
        classes = []
        for one in self.classes:
            if id(one) in joined:
                other, alike = joined[id(one)]
                classes.append(ValueClass(one.head, False, (one.members[0], other.members[1]), min(alike, 0.999)))
            elif id(one) not in absorbed:
                classes.append(one)
        return Evidence(self.reference, self.candidate, self.fingerprints, classes)

    @cached_property
    def class_of(self) -> dict[int, ValueClass]:
        """The class of each entry that was read, by its id."""
        return {id(item.entry): one for one in self.classes for some in one.members for item in some}

    def is_same(self, reference: Entry, candidate: Entry) -> bool:
        """Whether two entries are the same tensor, or probably are."""
        one = self.class_of.get(id(reference))
        return one is not None and not one.is_weak and one is self.class_of.get(id(candidate))

    def are_different(self, reference: Entry, candidate: Entry) -> bool:
        """Whether two entries are proven to be different tensors: each was found elsewhere on the other side."""
        ours, theirs = self.class_of.get(id(reference)), self.class_of.get(id(candidate))
        if ours is None or theirs is None or ours is theirs:
            return False
        return (ours.is_shared and not ours.is_weak) or (theirs.is_shared and not theirs.is_weak)

    def have_other_partners(self, reference: Entry, candidate: Entry) -> bool:
        """Whether each of two entries is proven equal to another one.

        No bug makes both members of a wrong pair right.
        """
        ours, theirs = self.class_of.get(id(reference)), self.class_of.get(id(candidate))
        return ours is not None and theirs is not None and ours is not theirs and ours.is_proof and theirs.is_proof

    def view(self, reference: Entry, candidate: Entry) -> str | None:
        """The view of the reference under which two entries of one class are equal; empty if none is needed."""
        ours, theirs = (self._fingerprint_of.get(id(entry)) for entry in (reference, candidate))
        if ours is None or theirs is None:
            return None
        alike = self.class_of[id(reference)].likeness
        return view_between(ours, theirs) if alike == 1.0 else likely_view(ours, theirs, _STILL_ALIKE * alike)

    def fingerprint_of(self, entry: Entry) -> Fingerprint | None:
        """The fingerprint of an entry, if it was read."""
        return self._fingerprint_of.get(id(entry))

    @cached_property
    def _fingerprint_of(self) -> dict[int, Fingerprint]:
        return {id(item.entry): item for some in self.fingerprints for item in some}

    def counterpart(self, entry: Entry, side: int) -> Fingerprint | None:
        """The equal or probably equal tensor of a side, for an entry of the other; an output if there is one."""
        one = self.class_of.get(id(entry))
        members = one.members[side] if one is not None and not one.is_weak else []
        return min(members, key=lambda item: item.entry.is_input, default=None)

    def is_proven(self, reference: Entry, candidate: Entry) -> bool:
        """Whether two entries are equal, and not by chance."""
        return self.is_same(reference, candidate) and self.class_of[id(reference)].likeness == 1.0


def _classes(fingerprints: tuple[list[Fingerprint], list[Fingerprint]]) -> list[ValueClass]:
    made: list[ValueClass] = []
    by_size: dict[tuple[int, bool], _SortedClasses] = defaultdict(_SortedClasses)
    for side, some in enumerate(fingerprints):
        for item in some:
            group = by_size[item.size, item.tolerance == 0.0]
            value_class = group.nearest(item)
            if value_class is None:
                value_class = ValueClass(item, _is_weak(item), ([], []))
                group.add(value_class)
                made.append(value_class)
            value_class.members[side].append(item)
    return made


def _is_weak(item: Fingerprint) -> bool:
    """Whether a tensor could be equal to another by chance."""
    if item.tolerance == 0.0:
        return True
    has_many = len(set(item.sample[: 2 * _FEW_VALUES].tolist())) >= _FEW_VALUES  # a quick test that most tensors pass
    return not has_many and len(np.unique(item.sample)) < _FEW_VALUES


class _SortedClasses:
    """Classes of one size, sorted by their RMS."""

    def __init__(self) -> None:
        self.rms: list[float] = []
        self.means: list[float] = []
        self.classes: list[ValueClass] = []
        self.tolerance = 0.0

    def add(self, one: ValueClass) -> None:
        self.tolerance = max(self.tolerance, one.head.tolerance)
        at = bisect_left(self.rms, one.head.rms)
        self.rms.insert(at, one.head.rms)
        self.means.insert(at, one.head.mean)
        self.classes.insert(at, one)

    def nearest(self, item: Fingerprint) -> ValueClass | None:
        """The class that a tensor belongs to."""
        slack = (4 * max(self.tolerance, item.tolerance) + 1e-9) * item.rms
        begin, end = bisect_left(self.rms, item.rms - slack), bisect_right(self.rms, item.rms + slack)
        low, high = item.mean - 2 * slack, item.mean + 2 * slack  # wider than the exact test below
        best: tuple[float, ValueClass] | None = None
        for k in [k for k in range(begin, end) if low <= self.means[k] <= high]:
            one = self.classes[k]
            head, limit = one.head, common_tolerance(one.head, item)
            near = max(3 * limit, 1e-9) * head.rms
            if abs(head.rms - item.rms) > near or abs(head.mean - item.mean) > near:
                continue
            distance = _distance(head, item)
            if distance <= limit and (best is None or distance < best[0]):
                best = distance, one
            if best is not None and best[0] == 0.0:
                break
        return None if best is None else best[1]


def _distance(a: Fingerprint, b: Fingerprint) -> float:
    """The distance of two tensors in the layout in which they are closest."""
    if reconcile(a.entry.spec.shape, b.entry.spec.shape) is not None:
        direct = rel_l2(a.entry.read(), b.entry.read())
        if direct <= common_tolerance(a, b):
            return direct
    if abs(a.largest - b.largest) > 0.05 * b.largest:
        return math.inf
    best = _best_view(a, b)
    return math.inf if best is None else best[1]


def _best_view(a: Fingerprint, b: Fingerprint) -> tuple[str, float] | None:
    array, wanted = a.entry.read(), b.entry.read()
    for view in possible_views(array.shape, wanted.shape):
        viewed = evaluate_view(view, array)
        if reconcile(viewed.shape, wanted.shape) is None:
            continue
        distance = rel_l2(viewed, wanted)
        if distance <= common_tolerance(a, b):
            return view, distance
    return None


def view_between(a: Fingerprint, b: Fingerprint) -> str | None:
    """The view under which one tensor equals another; None if there is none."""
    best = _best_view(a, b)
    return None if best is None else best[0]


def likely_view(a: Fingerprint, b: Fingerprint, least: float) -> str | None:
    """The first view under which a tensor's cosine with another, changed by an error, is at least ``least``."""
    array, wanted = a.entry.read(), b.entry.read().reshape(-1).astype(np.float64)
    for view in possible_views(array.shape, b.entry.spec.shape):
        viewed = evaluate_view(view, array)
        if cosine(viewed.reshape(-1).astype(np.float64), wanted) >= least:
            return view
    return None


def cosine(a: Array, b: Array) -> float:
    """How much two vectors point the same way, apart from their means; -1 if that is not known."""
    with np.errstate(all="ignore"):  # values that are not finite
        a, b = a - a.mean(), b - b.mean()
        size = float(np.linalg.norm(a) * np.linalg.norm(b))
        found = float(a @ b) / size if size else 0.0
    return found if math.isfinite(found) else -1.0


def shared_steps(reference: Index, candidate: Index) -> list[int]:
    """The steps that both runs have."""
    theirs = set(candidate.steps)
    return [step for step in reference.steps if step in theirs]


def evidence_of(reference: Index, candidate: Index, step: int) -> Evidence:
    """What the values of one step prove."""
    ours, theirs = Side(reference, step), Side(candidate, step)
    # If the names of one side do not repeat, all its entries are looked at, so equally many are of the other.
    return Evidence.of(ours.with_least(theirs.count), theirs.with_least(ours.count))
