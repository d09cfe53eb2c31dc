"""Namesakes: layers of the candidate that have the name of a layer of the reference and give another tensor.

Usually the layers that follow show whether a differing tensor is an error or something else of the same name: after an
error, they differ, too. If no later layer can decide, two things still do:

- A ``pooler`` that returns the mean, the first or the last of its input tokens has no weights. If the reference's
  pooler does, and no layer uses its output, the two are different things.
- After a wrong tensor, the next one is not closer to the right one. If the candidate's next tensor is (as a norm is,
  after the norm before its weight is applied), the name belongs to that one, or to neither.

A namesake is not paired by its name, and that is reported: it is a doubt, not an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tensordiff.align.by_value import fingerprint
from tensordiff.align.learn.evidence import Evidence
from tensordiff.align.learn.learned import Namesake
from tensordiff.align.learn.nodes import Node, NodeMatches, have_same_class
from tensordiff.align.learn.resemblance import alike
from tensordiff.align.match import Alignment
from tensordiff.dump.dtypes import Array, is_integral
from tensordiff.dump.model import Entry
from tensordiff.errors import AlignError, DumpError

_SAME_DIRECTION = 1e-5
"""How far the cosine of a pooled tensor may be from 1; whether it was scaled to length 1 does not matter."""
_LEAST, _NEARER = 0.5, 0.5
"""How alike the next tensor must be, and the share of the named one's distance that it may have."""
_NEXT = 2
"""How many of the following layers are looked at."""


@dataclass(eq=False)
class Namesakes:
    """Looks for namesakes among what names pair."""

    evidence: Evidence
    matches: NodeMatches
    alignment: Alignment

    def find(self, named: Sequence[tuple[Node, Node]]) -> list[tuple[Node, Namesake]]:
        """The candidate's nodes that are namesakes, among those that names pair."""
        found = []
        for ours, theirs in named:
            reason = self._reason(ours, theirs)
            if reason is not None:
                found.append((theirs, Namesake(theirs.layer, ours.layer, reason)))
        return found

    def _reason(self, ours: Node, theirs: Node) -> str | None:
        pair = self._differing(ours, theirs)
        if pair is None:
            return None
        if self._is_last(ours) and not have_same_class(ours, theirs):
            what = _pooled(pair[1], theirs.inputs)
            if what is not None and _pooled(pair[0], ours.inputs) is None:
                return f"it is {what} of what it is given, and the reference's is not"
        after = self._nearer_after(theirs, *pair)
        return None if after is None else f"{after.layer}, which comes after it, is nearer to the reference's"

    def _differing(self, ours: Node, theirs: Node) -> tuple[Entry, Entry] | None:
        """The outputs of two nodes, if each has one and these differ."""
        if len(ours.outputs) != 1 or len(theirs.outputs) != 1:
            return None
        a, b = ours.outputs[0], theirs.outputs[0]
        one, other = self.evidence.class_of.get(id(a)), self.evidence.class_of.get(id(b))
        is_known = one is not None and other is not None and one is not other
        return (a, b) if is_known and (id(a), id(b)) in self._paired else None

    def _is_last(self, node: Node) -> bool:
        """Whether no other layer gets the output of a node."""
        one = self.evidence.class_of[id(node.outputs[0])]
        return not any(item.entry.is_input for item in one.members[0])

    # --- the next tensor -------------------------------------------------------------------------------

    def _nearer_after(self, node: Node, ours: Entry, theirs: Entry) -> Node | None:
        """A layer soon after a node that no name pairs, and that is much closer to the reference's tensor."""
        if not self.evidence.is_ordered or self.evidence.class_of[id(ours)].is_shared:
            return None
        for after in self._following(node):
            for other in after.outputs:
                if id(other) not in self._named and self._is_nearer(ours, theirs, other):
                    return after
        return None

    @cached_property
    def _paired(self) -> set[tuple[int, int]]:
        """What names pair as a whole, by ids."""
        plain = (pair for pair in self.alignment.pairs if pair.by in ("name", "rule"))
        return {(id(pair.reference), id(pair.candidate)) for pair in plain}

    @cached_property
    def _named(self) -> set[int]:
        return {id(pair.candidate) for pair in self.alignment.pairs}

    def _following(self, node: Node) -> Iterator[Node]:
        in_order = self._in_order
        at = self._place[id(node)]
        yield from in_order[at + 1 : at + 1 + _NEXT]

    @cached_property
    def _in_order(self) -> list[Node]:
        return sorted((node for node in self.matches.candidate if node.outputs), key=lambda node: node.position)

    @cached_property
    def _place(self) -> dict[int, int]:
        return {id(node): k for k, node in enumerate(self._in_order)}

    def _is_nearer(self, ours: Entry, named: Entry, other: Entry) -> bool:
        fingerprints = [self.evidence.fingerprint_of(entry) or fingerprint(entry) for entry in (ours, named, other)]
        if fingerprints[0] is None or fingerprints[1] is None or fingerprints[2] is None:
            return False
        if not fingerprints[0].size == fingerprints[1].size == fingerprints[2].size:
            return False
        rival, own = alike(fingerprints[0], fingerprints[2]), alike(fingerprints[0], fingerprints[1])
        return rival >= _LEAST and 1.0 - rival <= _NEARER * (1.0 - own)


def _pooled(entry: Entry, inputs: Sequence[Entry]) -> str | None:
    """Which tokens of its input a tensor is, in words; None if it is none of these."""
    try:
        output = entry.read().astype(np.float64).reshape(-1)
        inputs_as_tokens = [array for one in inputs if (array := _tokens(one.read(), output.size)) is not None]
    except (DumpError, AlignError):
        return None
    for tokens in inputs_as_tokens:
        for what, pooled in (("the mean", tokens.mean(0)), ("the first token", tokens[0]), ("the last", tokens[-1])):
            if _points_alike(pooled, output):
                return what
    return None


def _tokens(array: Array, width: int) -> Array | None:
    """A tensor as its tokens; None if it does not have several tokens of this width."""
    if is_integral(array.dtype) or not array.ndim or array.shape[-1] != width or array.size <= width:
        return None
    return np.asarray(array.reshape(-1, width), np.float64)


def _points_alike(a: Array, b: Array) -> bool:
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return bool(size and np.isfinite(size)) and 1.0 - float(a @ b) / size <= _SAME_DIRECTION
