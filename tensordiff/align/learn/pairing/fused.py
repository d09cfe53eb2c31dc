"""Fused tensors: what one side computes together and the other apart, found by value among neighbours.

``cat(q, k, v)``, a slice of a wider tensor, the sum with a residual that is passed on separately, an activation times
its gate, one token of all. Comparing a first row or the first values rules out nearly everything; the rest is computed
whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from tensordiff.align.by_value import ACTIVATIONS, Fingerprint, common_tolerance, rel_l2
from tensordiff.align.learn.evidence import Evidence, ValueClass
from tensordiff.align.learn.nodes import NodeMatches
from tensordiff.align.learn.pairing.ports import Formula, LearnedPair, is_one_token
from tensordiff.align.learn.pairing.split_parts import part_template
from tensordiff.align.views import reconcile
from tensordiff.dump.model import Entry
from tensordiff.errors import AlignError, DumpError

_SLACK = 20.0  # the error of a few values may be this much larger than the tensor's
_MOST_PARTS = 4
_CROWD = 8
_MOST_TARGETS = 200
_NEAR_PRODUCT, _FEW = 16, 8
_NEAR = 40
"""How many tensors before and after one are tried as its parts."""
Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Part:
    """A tensor that others may be made of."""

    item: Fingerprint
    position: int

    @cached_property
    def row(self) -> Values:
        """Its first row."""
        return np.asarray(self.item.entry.read().reshape(-1, self.item.width)[0], np.float64)

    @cached_property
    def last(self) -> Values:
        """Its last row."""
        return np.asarray(self.item.entry.read().reshape(-1, self.item.width)[-1], np.float64)


@dataclass(eq=False)
class FusedPairs:
    """Finds formulas for tensors that have no partner by themselves."""

    matches: NodeMatches
    used: set[int]
    """Entries that have a pair, by their ids."""

    @property
    def evidence(self) -> Evidence:
        """What the values prove."""
        return self.matches.evidence

    def pairs(self) -> Iterator[LearnedPair]:
        """Pairs of tensors that the other side does not have whole, the candidate's first."""
        explained: set[int] = set()
        for side in (1, 0):
            for pair in self._search(side, only_free=False, explained=explained):
                explained |= {id(part) for part in (*pair.reference.parts, *pair.candidate.parts)}
                yield pair

    def pairs_of_remaining(self) -> Iterator[LearnedPair]:
        """Pairs of tensors that the other side has whole, but not for this layer."""
        for side in (1, 0):
            yield from self._search(side, only_free=True)

    def _search(self, side: int, *, only_free: bool, explained: Collection[int] = frozenset()) -> Iterator[LearnedPair]:
        parts = self._parts(1 - side, only_free=only_free)
        for target in islice(self._targets(side, is_shared=only_free), _MOST_TARGETS):
            if id(target.entry) in explained:
                continue  # it is a part of a tensor that the other side fuses
            near = _parts_near(parts, self._position(target.entry, side))
            formula = next(self._formulas(target, near), None)
            is_equal = formula is not None
            if formula is None:
                formula = self._formula_on_one_side(target, near, side)
            if formula is not None and id(target.entry) not in self.used:
                pair = self._pair_of(target.entry, formula, side, uses_parts=only_free)
                yield from self._with_related_pairs(pair._replace(is_proven=is_equal), target.entry, formula, side)

    def _with_related_pairs(
        self, pair: LearnedPair, entry: Entry, formula: Formula, side: int
    ) -> Iterator[LearnedPair]:
        """The pair; pairs of other outputs that are the same tensor; for a token, the pair of its layer's input."""
        yield pair
        same = (item.entry for item in self.evidence.class_of[id(entry)].members[side])
        for other in same:
            if not other.is_input and not entry.is_input and id(other) not in self.used:
                yield self._pair_of(other, formula, side, uses_parts=False)._replace(is_proven=pair.is_proven)
        if formula.template == "last_token({0})" and not entry.is_input:
            node, whole = self.matches.node_of[id(entry)], self.matches.node_of[id(formula.parts[0])]
            for given in (one for one in node.inputs if id(one) not in self.used):
                fitting = [one for one in whole.inputs if is_one_token(given, one)]
                if len(fitting) == 1:
                    made = self._pair_of(given, Formula((fitting[0],), formula.template), side, uses_parts=False)
                    yield made._replace(is_proven=False)

    def _formula_on_one_side(self, target: Fingerprint, parts: Sequence[Part], side: int) -> Formula | None:
        """A formula that holds within one side, for a target or parts that an error has changed on the other.

        Either the side of the parts probably has the target, too, or the side of the target has all parts.
        """
        other = self.evidence.counterpart(target.entry, 1 - side)
        own = self.evidence.class_of[id(target.entry)]
        if other is not None and own.likeness < 1.0:
            rest = [part for part in parts if self.evidence.class_of[id(part.item.entry)] is not own]
            return next(self._formulas(other, rest), None)
        there = [(part, self.evidence.counterpart(part.item.entry, side)) for part in parts]
        seen = {
            id(item.entry): part for part, item in there
            if item is not None and self.evidence.class_of[id(item.entry)] is not own
        }  # fmt: skip
        made = next(self._formulas(target, [Part(item, part.position) for part, item in there
                                            if item is not None and id(item.entry) in seen]), None)  # fmt: skip
        return None if made is None else made._replace(parts=tuple(seen[id(e)].item.entry for e in made.parts))

    def likely_concatenations(self) -> Iterator[LearnedPair]:
        """Beyond the first error, where nothing is equal: tensors that resemble the concatenation of several."""
        for target, near in self._unexplained_targets():
            siblings = [part for part in near if self._share_an_input(part, target)]
            formula = likely_concatenation(target, siblings, _CLEAR_OF_SIBLINGS) or likely_concatenation(
                target, near, _CLEAR
            )
            if formula is not None and not any(id(part) in self.used for part in formula.parts[1:]):
                yield from self._likely_pairs(target.entry, formula)

    def likely_tokens(self) -> Iterator[LearnedPair]:
        """Beyond the first error: tensors that resemble one token of another."""
        for target, near in self._unexplained_targets():
            # If the candidate has the tensor itself, a token of it would be equal, not only similar.
            absent = [part for part in near if not self._candidate_has(part.item.entry, target.entry)]
            formula = likely_token(target, absent) if target.size == target.width else None
            if formula is not None:
                yield from self._likely_pairs(target.entry, formula)

    def _candidate_has(self, ours: Entry, target: Entry) -> bool:
        """Whether the candidate has a tensor of the reference in another layer than that of a target."""
        if self.evidence.counterpart(ours, 1) is not None:
            return True
        theirs = self.matches.of_reference.get(id(self.matches.node_of[id(ours)]))
        return theirs is not None and theirs is not self.matches.node_of[id(target)]

    def _unexplained_targets(self) -> Iterator[tuple[Fingerprint, Sequence[Part]]]:
        parts = [part for part in self._parts(0, only_free=False) if not part.item.entry.is_input]
        for target in islice(self._targets(1, is_shared=False), _MOST_TARGETS):
            if not target.entry.is_input and id(target.entry) not in self.used:
                yield target, _parts_near(parts, self._position(target.entry, 1))

    def _likely_pairs(self, entry: Entry, formula: Formula) -> Iterator[LearnedPair]:
        pair = self._pair_of(entry, formula, 1, uses_parts=False)
        yield from self._with_related_pairs(pair._replace(is_proven=False), entry, formula, 1)

    def _share_an_input(self, part: Part, target: Fingerprint) -> bool:
        """Whether two layers get the same tensor, as projections do that the other side fuses."""
        ours, theirs = (self.matches.node_of[id(item.entry)] for item in (part.item, target))
        return any(self.evidence.is_same(a, b) for a in ours.inputs for b in theirs.inputs)

    def _pair_of(self, entry: Entry, formula: Formula, side: int, *, uses_parts: bool) -> LearnedPair:
        self.used.add(id(entry))
        if uses_parts:
            self.used |= {id(part) for part in formula.parts}
        own = Formula((entry,))
        return LearnedPair(formula, own, True) if side == 1 else LearnedPair(own, formula, True)

    def _targets(self, side: int, *, is_shared: bool) -> Iterator[Fingerprint]:
        """Tensors that the other side does not have, outputs before inputs; or that it has, without a free partner."""
        for one in self.evidence.classes:
            if one.is_weak or one.is_shared != is_shared or not one.members[side]:
                continue
            left = [item for item in one.members[side] if id(item.entry) not in self.used]
            left.sort(key=lambda item: item.entry.is_input)
            if is_shared and len(left) <= _CROWD:
                yield from left
            elif not is_shared and left and len(left) == len(one.members[side]):
                yield left[0]

    def _parts(self, side: int, *, only_free: bool) -> list[Part]:
        """One entry of each class, in order, an output if possible; or all entries without a partner."""
        dump = self.evidence.reference if side == 0 else self.evidence.candidate
        classes = [one for one in self.evidence.classes if one.members[side] and not one.is_weak]
        chosen = [_member(one, side, dump.position) for one in classes]
        if only_free:
            chosen = [item for one in classes for item in one.members[side] if id(item.entry) not in self.used]
        return sorted((Part(item, dump.position[id(item.entry)]) for item in chosen), key=lambda part: part.position)

    def _position(self, entry: Entry, side: int) -> int:
        """Roughly where a tensor would stand on the other side: where the last matched node before it stands."""
        positions, partners = self._matched[side]
        own = (self.evidence.candidate if side == 1 else self.evidence.reference).position[id(entry)]
        at = bisect_right(positions, own)
        return partners[at - 1] if at else 0

    @cached_property
    def _matched(self) -> tuple[tuple[list[int], list[int]], tuple[list[int], list[int]]]:
        """Where matched nodes end on each side, in order, and where their partners do."""
        both = [
            (n, self.matches.of_reference[id(n)]) for n in self.matches.reference if id(n) in self.matches.of_reference
        ]
        ours = sorted((a.position, b.position) for a, b in both)
        theirs = sorted((b.position, a.position) for a, b in both)
        return ([a for a, _ in ours], [b for _, b in ours]), ([b for b, _ in theirs], [a for _, a in theirs])

    def _formulas(self, target: Fingerprint, parts: Sequence[Part]) -> Iterator[Formula]:
        for formula in _formulas(target, parts):
            if _gives_target(formula, target):
                yield formula


def _member(one: ValueClass, side: int, position: Mapping[int, int]) -> Fingerprint:
    """The entry that stands for a class: its first output."""
    return min(one.members[side], key=lambda item: (item.entry.is_input, position[id(item.entry)]))


def _parts_near(parts: Sequence[Part], position: int) -> Sequence[Part]:
    at = bisect_right(parts, position, key=lambda part: part.position)
    return parts[max(0, at - _NEAR) : at + _NEAR]


def _gives_target(formula: Formula, target: Fingerprint) -> bool:
    """Whether a formula gives the target, computed whole."""
    try:
        made, wanted = formula.read(), target.entry.read()
    except (AlignError, DumpError):
        return False
    if made.size != wanted.size or reconcile(made.shape, wanted.shape) is None:
        return False
    return rel_l2(made, wanted) <= max(target.tolerance, 1e-6)


def _formulas(target: Fingerprint, parts: Sequence[Part]) -> Iterator[Formula]:
    own = Part(target, 0)
    yield from _cats(own, parts)
    yield from _slices(own, parts)
    yield from _tokens(own, parts)
    yield from _sums(own, parts)
    yield from _products(own, parts)


def _rows(item: Fingerprint) -> int:
    return item.size // item.width


def _is_near(a: Values, b: Values, tolerance: float) -> bool:
    return bool(np.linalg.norm(a - b) <= max(_SLACK * tolerance, 1e-6) * np.linalg.norm(b))


def _cats(target: Part, parts: Sequence[Part]) -> Iterator[Formula]:
    """Parts whose concatenation is the target, in any order."""
    item = target.item
    fitting = [p for p in parts if p.item.width < item.width and _rows(p.item) == _rows(item)]

    def continued(offset: int, chosen: tuple[Part, ...]) -> Iterator[tuple[Part, ...]]:
        if offset == item.width:
            yield chosen
            return
        for part in fitting if len(chosen) < _MOST_PARTS else ():
            end = offset + part.item.width
            near = common_tolerance(part.item, item)
            if end <= item.width and part not in chosen and _is_near(part.row, target.row[offset:end], near):
                yield from continued(end, (*chosen, part))

    for chosen in continued(0, ()):
        names = ", ".join(f"{{{k}}}" for k in range(len(chosen)))
        yield Formula(tuple(part.item.entry for part in chosen), f"cat({names})")


def _slices(target: Part, parts: Sequence[Part]) -> Iterator[Formula]:
    """A wider tensor of which the target is a part."""
    item, width = target.item, target.item.width
    for part in parts:
        if part.item.width <= width or _rows(part.item) != _rows(item):
            continue
        step = int(np.gcd(part.item.width, width))
        for start in range(0, part.item.width - width + 1, step):
            if _is_near(part.row[start : start + width], target.row, common_tolerance(part.item, item)):
                yield Formula((part.item.entry,), part_template(start, width, part.item.width))


def _tokens(target: Part, parts: Sequence[Part]) -> Iterator[Formula]:
    """Tensors of which the target is one token."""
    if target.item.size != target.item.width:
        return
    for part in parts:
        if part.item.width == target.item.width and part.item.size > target.item.size:
            near = common_tolerance(part.item, target.item)
            if _is_near(part.last, target.row, near):
                yield Formula((part.item.entry,), "last_token({0})")
            elif _is_near(part.row, target.row, near):
                yield Formula((part.item.entry,), "token({0}, 0)")


def _samples(target: Part, parts: Sequence[Part]) -> tuple[list[Part], Values]:
    item = target.item
    fitting = [p for p in parts if p.item.core == item.core and len(p.item.sample) == len(item.sample)]
    return fitting, np.array([p.item.sample for p in fitting]).reshape(len(fitting), len(item.sample))


def _sums(target: Part, parts: Sequence[Part]) -> Iterator[Formula]:
    """Two tensors that add up to the target, neither of which alone is nearly all of it."""
    fitting, samples = _samples(target, parts)
    wanted = target.item.sample
    limit = max(_SLACK * target.item.tolerance, 1e-6) * float(np.linalg.norm(wanted))
    for k, n in _possible_sums(samples, wanted, limit):
        missing = wanted - samples[k]
        error = float(np.linalg.norm(samples[n] - missing))
        alone = min(float(np.linalg.norm(missing)), float(np.linalg.norm(wanted - samples[n])))
        if error <= min(limit, 0.1 * alone):
            yield Formula((fitting[k].item.entry, fitting[n].item.entry), "sum({0}, {1})")


def _possible_sums(samples: Values, wanted: Values, limit: float) -> Iterator[tuple[int, int]]:
    """Which two rows may add up to a third, by one matrix product: ``|a + b - w|`` from ``(a - w)`` and ``b``."""
    if len(samples) < 2:
        return
    missing = samples - wanted
    with np.errstate(all="ignore"):
        squares = (missing**2).sum(1)[:, None] + (samples**2).sum(1)[None, :] + 2 * (missing @ samples.T)
        rounding = 1e-12 * float((samples**2).sum(1).max() + (wanted**2).sum())
        pairs = np.argwhere(~(squares > limit**2 + rounding))
    yield from ((int(k), int(n)) for k, n in pairs if k < n)


def _products(target: Part, parts: Sequence[Part]) -> Iterator[Formula]:
    """A gate, activated or not, times another tensor."""
    middle = len(parts) // 2
    fitting, samples = _samples(target, parts[max(0, middle - _NEAR_PRODUCT) : middle + _NEAR_PRODUCT])
    wanted = target.item.sample
    near = max(_SLACK * target.item.tolerance, 1e-6)
    with np.errstate(all="ignore"):
        for name, activated in _activated(samples[:, :_FEW]):
            few = activated[:, None] * samples[None, :, :_FEW] - wanted[:_FEW]
            errors = np.linalg.norm(few, axis=2)
            for k, n in np.argwhere(errors <= 4 * near * np.linalg.norm(wanted)):
                gate = ACTIVATIONS[name](samples[k]) if name else samples[k]
                error = np.linalg.norm(gate * samples[n] - wanted)
                if n != k and (name or k < n) and error <= near * np.linalg.norm(wanted):
                    template = f"mul({name}({{0}}), {{1}})" if name else "mul({0}, {1})"
                    yield Formula((fitting[k].item.entry, fitting[n].item.entry), template)


def _activated(samples: Values) -> Iterable[tuple[str, Values]]:
    yield "", samples
    for name, activation in ACTIVATIONS.items():
        yield name, np.asarray(activation(samples), np.float64)


# --- beyond the first error ------------------------------------------------------------------------------

_ALIKE, _CLEAR, _CLEAR_OF_SIBLINGS = 0.6, 0.3, 0.1
"""The cosine that a part must have, and by how much it must exceed that of any other."""
_NEARER_TOKEN = 0.6
"""How much closer the last token must be than any other: its distance, as a share of the other's."""
_ROWS = 64


def likely_concatenation(target: Fingerprint, parts: Sequence[Part], clear: float) -> Formula | None:
    """Parts whose concatenation resembles the target, with no other part resembling it nearly as much."""
    wide = _matrix(target)
    fitting = [(p, _matrix(p.item)) for p in parts if p.item.width < target.width and _rows(p.item) == _rows(target)]
    chosen: list[Part] = []
    offset = 0
    while fitting and offset < target.width and len(chosen) < _MOST_PARTS:
        scored = sorted(
            ((_cosine(m, wide[:, offset : offset + p.item.width]), p) for p, m in fitting
             if offset + p.item.width <= target.width and p not in chosen),
            key=lambda item: -item[0],
        )  # fmt: skip
        if not scored or scored[0][0] < _ALIKE or (len(scored) > 1 and scored[1][0] > scored[0][0] - clear):
            return None
        chosen.append(scored[0][1])
        offset += scored[0][1].item.width
    if offset != target.width or len(chosen) < 2:
        return None
    names = ", ".join(f"{{{k}}}" for k in range(len(chosen)))
    return Formula(tuple(part.item.entry for part in chosen), f"cat({names})")


def likely_token(target: Fingerprint, parts: Sequence[Part]) -> Formula | None:
    """The tensor whose last token resembles the target, much more than any other tensor's, or its own other tokens."""
    row = _matrix(target)
    longer = [p for p in parts if p.item.width == target.width and p.item.size > target.size]
    scored = sorted(((_cosine(p.last.reshape(1, -1), row), p) for p in longer), key=lambda item: -item[0])
    if not scored or scored[0][0] < _ALIKE or (len(scored) > 1 and scored[1][0] > scored[0][0] - _CLEAR):
        return None
    best, part = scored[0]
    others = _matrix(part.item)[: part.item.size // part.item.width - 1]
    if any(1.0 - best > _NEARER_TOKEN * (1.0 - _cosine(other.reshape(1, -1), row)) for other in others):
        return None  # a mean of all tokens resembles each of them
    return Formula((part.item.entry,), "last_token({0})")


def _matrix(item: Fingerprint) -> Values:
    return np.asarray(item.entry.read().reshape(-1, item.width)[:_ROWS], np.float64)


def _cosine(a: Values, b: Values) -> float:
    if a.shape != b.shape:
        return -1.0
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float((a * b).sum()) / size if size else 0.0
    return cosine if np.isfinite(cosine) else -1.0
