"""Norms before their weight: tensors that some engines show, and that the reference lacks.

A candidate that shows a norm twice, before and after its weight is applied, has two tensors that resemble the
reference's one. Which is which is known without looking at what follows, so right up to the first error: a tensor that
is exactly normalized and gives the reference's norm, channel by channel, by a factor and an offset, was computed
correctly and lacks the weight.

That alone would excuse a port that forgets the weight. So the candidate must have the norm itself, too: after it, equal
to the reference's or, if an error is in it, directly after it and closer to the reference's norm than to anything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tensordiff.align.by_value import Fingerprint, common_tolerance
from tensordiff.align.learn.evidence import Evidence, ValueClass
from tensordiff.align.learn.nodes import Node, NodeMatches
from tensordiff.align.learn.resemblance import alike, is_normalized

_LEAST = 0.4
"""How alike two tensors must be for one to be the other with an error, or before its weight."""
_FEW, _MANY = 4, 256
"""With fewer tokens, a factor and an offset for each channel fit anything; no more than ``_MANY`` are looked at."""
Matrix = NDArray[np.float64]


@dataclass(eq=False)
class UnweightedNorms:
    """Finds the candidate's norms before their weight."""

    evidence: Evidence
    matches: NodeMatches

    def nodes(self) -> list[Node]:
        """The nodes of the candidate that give one."""
        if not self.evidence.candidate.index.dump.ordered:
            return []  # the order of the layers is not known
        return [self.matches.node_of[id(item.entry)] for item in self._normalized() if self._lacks_weight(item)]

    def _normalized(self) -> Iterator[Fingerprint]:
        """The candidate's tensors that are exactly normalized, and that the reference lacks."""
        for one in self._in_order:
            if not one.is_shared and is_normalized(one.members[1][0]):
                yield from (item for item in one.members[1] if not item.entry.is_input)

    def _lacks_weight(self, item: Fingerprint) -> bool:
        return any(self._has_weighted(item, one) for one in self._reference if _is_weighted(one.members[0][0], item))

    def _has_weighted(self, item: Fingerprint, norm: ValueClass) -> bool:
        """Whether the candidate has the reference's norm, with an error or without, after one before its weight."""
        own = self._position[id(item.entry)]
        if norm.is_shared:
            return any(self._position[id(other.entry)] > own for other in norm.members[1])
        after = next((one for one in self._in_order if self._first(one) > own), None)
        if after is None or after.is_shared or after.head.size != item.size:
            return False
        rivals = [(alike(one.head, after.head), one) for one in self._reference if not one.is_shared]
        nearest = max(rivals, key=lambda rival: rival[0])
        return nearest[1] is norm and nearest[0] >= _LEAST

    @cached_property
    def _position(self) -> dict[int, int]:
        return self.evidence.candidate.position

    def _first(self, one: ValueClass) -> int:
        """Where a layer of the candidate first gives a tensor."""
        return min(self._position[id(item.entry)] for item in one.members[1] if not item.entry.is_input)

    @cached_property
    def _in_order(self) -> list[ValueClass]:
        """The outputs of the candidate's layers, in order."""
        outputs = (one for one in self.evidence.classes if any(not item.entry.is_input for item in one.members[1]))
        return sorted((one for one in outputs if not one.is_weak), key=self._first)

    @cached_property
    def _reference(self) -> list[ValueClass]:
        return [one for one in self.evidence.classes if one.members[0] and not one.is_weak]


def _is_weighted(norm: Fingerprint, item: Fingerprint) -> bool:
    """Whether each channel of one tensor is that of the other times a factor, plus an offset."""
    rows = norm.size // norm.width
    if norm.size != item.size or norm.width != item.width or rows < _FEW or alike(norm, item) < _LEAST:
        return False
    wanted, given = (_centered(one) for one in (norm, item))
    with np.errstate(all="ignore"):
        factors = np.nan_to_num((wanted * given).sum(0) / (given**2).sum(0))
    left = float(np.linalg.norm(wanted - factors * given))
    return left <= max(common_tolerance(norm, item), 1e-6) * float(np.linalg.norm(wanted))


def _centered(item: Fingerprint) -> Matrix:
    rows = item.entry.read().reshape(-1, item.width)[:_MANY].astype(np.float64)
    return np.asarray(rows - rows.mean(0), np.float64)
