"""Parts of a fused tensor, as ``split(qkv, 0, 3)``: how they are written, and which one remains.

If an error is in one projection of a fused tensor, the others equal their parts of it and that one does not. It is the
part that remains, and its error is found only if it is compared.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tensordiff.align.learn.nodes import Node, NodeMatches
from tensordiff.align.learn.pairing.ports import Formula, LearnedPair
from tensordiff.dump.model import Entry
from tensordiff.errors import AlignError, DumpError


def part_template(start: int, width: int, whole: int) -> str:
    """The formula for a part of a wider tensor."""
    if whole % width == 0 and start % width == 0:
        return f"split({{0}}, {start // width}, {whole // width})"
    return f"slice({{0}}, -1, {start}, {start + width})"


def _columns_of(formula: Formula, width: int) -> range:
    """Which columns of a tensor a part of it takes."""
    whole = formula.parts[0].spec.shape[-1]
    starts = range(0, whole - width + 1, math.gcd(whole, width))
    start = next((start for start in starts if part_template(start, width, whole) == formula.template), None)
    return range(0) if start is None else range(start, start + width)


def _shape(entry: Entry) -> tuple[int, ...] | None:
    try:
        return entry.spec.shape
    except (DumpError, AlignError):
        return None  # measuring reports it


@dataclass(frozen=True)
class RemainingParts:
    """Finds the one remaining projection of a fused tensor all of whose other parts are proven."""

    matches: NodeMatches
    used: Collection[int]
    """Entries that have a pair, by their ids."""

    def pairs(self, proven: Iterable[LearnedPair]) -> Iterator[LearnedPair]:
        """Pairs of what remains with the rest of the fused tensor."""
        parts: dict[tuple[int, int], list[tuple[Entry, Formula]]] = defaultdict(list)
        for pair in proven:
            for side, own, other in ((0, pair.reference, pair.candidate), (1, pair.candidate, pair.reference)):
                is_cut = other.template.startswith(("split(", "slice(")) and own.template == "{0}"
                if is_cut and pair.is_proven and not own.parts[0].is_input:
                    parts[side, id(other.parts[0])].append((own.parts[0], other))
        for (side, _), known in parts.items():
            left = self._remaining_part(known, side)
            if left is not None:
                yield LearnedPair(*(left if side == 0 else left[::-1]), is_proven=False)

    def _remaining_part(self, known: Sequence[tuple[Entry, Formula]], side: int) -> tuple[Formula, Formula] | None:
        """The remaining entry and its part of the fused tensor, if there is exactly one of each."""
        fused = known[0][1].parts[0]
        whole = fused.spec.shape[-1]
        taken = {at for entry, formula in known for at in _columns_of(formula, entry.spec.shape[-1])}
        left = [at for at in range(whole) if at not in taken]
        if not left or left != list(range(left[0], left[0] + len(left))):
            return None
        shape = (*known[0][0].spec.shape[:-1], len(left))
        fitting = [entry for entry in self._neighbours([entry for entry, _ in known], side) if _shape(entry) == shape]
        if len(fitting) != 1:
            return None
        return Formula((fitting[0],)), Formula((fused,), part_template(left[0], len(left), whole))

    def _neighbours(self, entries: Sequence[Entry], side: int) -> Iterator[Entry]:
        """Outputs of other layers that share an input with the known ones.

        If inputs are not known, those of layers in the same module.
        """
        own = [self.matches.node_of[id(entry)] for entry in entries]
        shared_inputs = {id(one) for node in own for one in self._input_tensors(node)}
        modules = {id(node.parent) for node in own if node.parent is not None}
        for node in self.matches.candidate if side else self.matches.reference:
            is_beside = (
                shared_inputs & {id(one) for one in self._input_tensors(node)}
                if shared_inputs
                else id(node.parent) in modules
            )
            if is_beside and not node.children:
                yield from (entry for entry in node.outputs if id(entry) not in self.used and node not in own)

    def _input_tensors(self, node: Node) -> Iterator[object]:
        """The tensors that a node gets."""
        known = (self.matches.evidence.class_of.get(id(entry)) for entry in node.inputs)
        return (one for one in known if one is not None and not one.is_weak)
