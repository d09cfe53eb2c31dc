"""How much of two dumps was compared: the share of each side's outputs, by count and by bytes.

Coverage is about both sides. If a candidate of two tensors finds both partners, that says little about a reference of
two hundred, and the other way round, so the lower share counts. Inputs are left out: most are another layer's output.

Operations of two engines are different: one engine has a single operation where the other has ten, nine of which have
no counterpart. So for operations that compute something, the higher share counts: see
docs/decisions/0087-coverage-of-operations.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from tensordiff.align.index import all_parts, parts_of
from tensordiff.align.operations import computes, is_operation, layer_of_operation, operation_name, operation_number
from tensordiff.dump.model import CallKey, Entry
from tensordiff.errors import DumpError
from tensordiff.util.slices import dict_for, in_order, release


class _Pair(Protocol):
    """What coverage needs to know about a pair."""

    @property
    def reference(self) -> Entry: ...

    @property
    def candidate(self) -> Entry: ...


@dataclass(frozen=True)
class SideCoverage:
    """What was compared of one dump: its outputs, or its inputs if it has nothing else."""

    compared: tuple[Entry, ...]
    left: tuple[Entry, ...]
    """Entries that were not compared."""

    @property
    def total(self) -> int:
        """How many entries could have been compared."""
        return len(self.compared) + len(self.left)

    @property
    def share(self) -> float:
        """The share of the entries that were compared; 0 if there are none."""
        return len(self.compared) / self.total if self.total else 0.0

    @cached_property
    def operations(self) -> SideCoverage:
        """The coverage of only the operations that compute something."""
        some = ([entry for entry in side if computes(entry.layer)] for side in (self.compared, self.left))
        return SideCoverage(*map(tuple, some))

    @cached_property
    def modules(self) -> SideCoverage:
        """The coverage of modules whose operations were not captured.

        A layer that has operations is left out, because its last operation gives the same output.
        """
        layers = {layer_of_operation(entry.layer) for entry in (*self.compared, *self.left)}
        return self._only(lambda entry: not is_operation(entry.layer) and entry.layer not in layers)

    def _only(self, is_counted: Callable[[Entry], bool]) -> SideCoverage:
        return SideCoverage(tuple(filter(is_counted, self.compared)), tuple(filter(is_counted, self.left)))

    @cached_property
    def last_operations(self) -> frozenset[CallKey]:
        """In each call of a layer, the operation that computes the layer's output."""
        last: dict[tuple[str, int, int], CallKey] = {}
        for entry in (*self.operations.compared, *self.operations.left):
            key = entry.call_key
            within = layer_of_operation(entry.layer), entry.step, entry.call
            if operation_number(entry.layer) >= operation_number(last.get(within, key).layer):
                last[within] = key
        return frozenset(last.values())

    @cached_property
    def share_of_bytes(self) -> float:
        """The same by bytes. Reads headers."""
        compared, left = sum(map(_nbytes, self.compared)), sum(map(_nbytes, self.left))
        return compared / (compared + left) if compared + left else self.share

    @property
    def missing_steps(self) -> list[int]:
        """Steps of which nothing was compared, if something was compared of others."""
        steps = {entry.step for entry in self.compared}
        return sorted({entry.step for entry in self.left} - steps) if steps else []

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "compared": len(self.compared), "of": self.total,
            "share": round(self.share, 4), "share_of_bytes": round(self.share_of_bytes, 4),
        }  # fmt: skip


@dataclass(frozen=True)
class Coverage:
    """What was compared of both dumps."""

    reference: SideCoverage
    candidate: SideCoverage
    calls: frozenset[tuple[CallKey, CallKey]] = frozenset()
    """Operations that were compared with each other."""

    @classmethod
    def of(
        cls,
        compared: Iterable[_Pair],
        pairs: Iterable[_Pair],
        reference_orphans: Iterable[Entry],
        candidate_orphans: Iterable[Entry],
    ) -> Coverage:
        """Coverage by the pairs that were compared, all pairs, and the orphans."""
        compared, pairs = list(compared), list(pairs)
        operations = [pair for pair in compared if computes(pair.reference.layer) and not pair.reference.is_input]
        return cls(
            _side([pair.reference for pair in compared], [pair.reference for pair in pairs], reference_orphans),
            _side([pair.candidate for pair in compared], [pair.candidate for pair in pairs], candidate_orphans),
            frozenset(
                (pair.reference.call_key, part.call_key) for pair in operations for part in parts_of(pair.candidate)
            ),
        )

    @property
    def share(self) -> float:
        """The lower share of the two sides; for operations of two engines, that of the coarser one."""
        if not self.is_of_two_engines:
            return min(self.reference.share, self.candidate.share)
        sides = self.reference, self.candidate
        modules = [side.modules.share for side in sides if side.modules.total]
        return min(max(side.operations.share for side in sides), *modules, 1.0)

    @cached_property
    def is_of_two_engines(self) -> bool:
        """Whether the sides name no operation alike, and the last operation of each layer was compared."""
        ours, theirs = (
            {operation_name(entry.layer) for entry in (*side.operations.compared, *side.operations.left)}
            for side in (self.reference, self.candidate)
        )
        return bool(ours and theirs) and not ours & theirs and self.uncompared_last_operation is None

    @cached_property
    def uncompared_last_operation(self) -> str | None:
        """An operation that computes a layer's output and was not compared with the other side's; None if none."""
        ours, theirs = self.reference.last_operations, self.candidate.last_operations
        if not ours or not theirs:
            return None
        both = [(a, b) for a, b in self.calls if a in ours and b in theirs]
        left = (ours - {a for a, _ in both}) or (theirs - {b for _, b in both})
        return min(left).layer if left else None

    @property
    def share_of_bytes(self) -> float:
        """The lower share of the two sides, by bytes."""
        return min(self.reference.share_of_bytes, self.candidate.share_of_bytes)

    @property
    def sentence(self) -> str:
        """The coverage in words, on one line."""
        sides = (("reference", self.reference), ("candidate", self.candidate))
        phrases = (f"{len(side.compared)} of {side.total} outputs of the {name}" for name, side in sides)
        why = (
            "; one engine has several operations for one of the other, whose share counts"
            if self.is_of_two_engines
            else ""
        )
        return f"compared {', '.join(phrases)}{why}"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"reference": self.reference.as_json(), "candidate": self.candidate.as_json()}


def _side(compared: Sequence[Entry], paired: Sequence[Entry], orphans: Iterable[Entry]) -> SideCoverage:
    used, left = dict_for(len(compared)), dict_for(len(paired))
    for part in all_parts(compared):
        used[id(part)] = part
    # An entry may stand in several pairs, such as the logits of all tokens and of the last one.
    is_all = len(compared) == len(paired) and all(a is b for a, b in zip(compared, paired, strict=True))
    for part in all_parts(() if is_all else paired):
        if used.get(id(part)) is None:
            left[id(part)] = part
    rest = [*left.values(), *orphans]
    outputs = [[entry for entry in some if not entry.is_input] for some in (in_order(used), rest)]
    counted = outputs if any(outputs) else [[*used.values()], rest]
    side = SideCoverage(tuple(counted[0]), tuple(counted[1]))
    release(used, left, rest, *outputs)
    return side


def _nbytes(entry: Entry) -> int:
    try:
        return entry.spec.nbytes
    except DumpError:
        return 0  # it cannot be read, which the comparison reports
