"""Pairing: which entry of the candidate answers which entry of the reference.

Two entries are a pair when rules write their layers alike and they are the same port, step and
call. Where one side calls a layer once and the other more often (MAX computes logits of the last
token and then of all), the last call whose shape fits is taken. What has no partner is an orphan and
is listed, never dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tensordiff.align.rules import RuleSet, Side
from tensordiff.align.views import reconcile
from tensordiff.dump.model import Dump, Entry
from tensordiff.errors import DumpError

Order = Literal["same", "differs", "unknown"]
By = Literal["name", "rule", "map", "fused", "value"]
_Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Pair:
    """A reference entry and the candidate entry held to be the same tensor."""

    index: int
    name: str
    reference: Entry
    candidate: Entry
    by: By


@dataclass(frozen=True)
class Alignment:
    """All pairs in execution order, plus the orphans."""

    pairs: tuple[Pair, ...]
    reference_orphans: tuple[Entry, ...]
    candidate_orphans: tuple[Entry, ...]
    order: Order

    @property
    def coverage(self) -> float:
        """Share of the side with fewer entries that found a partner."""
        paired = len(self.pairs)
        fewer = paired + min(len(self.reference_orphans), len(self.candidate_orphans))
        return paired / fewer if fewer else 0.0


def align(reference: Dump, candidate: Dump, rules: RuleSet | None = None) -> Alignment:
    """Pair two dumps by name."""
    rules = rules or RuleSet()
    groups = _group(candidate, rules, "candidate")
    partners = dict(_partners(_group(reference, rules, "reference"), groups))
    taken = {id(entry) for entry in partners.values()}
    found = [(entry, partners[id(entry)]) for entry in reference.entries if id(entry) in partners]
    order = _order(reference, candidate, found)
    if candidate.ordered and not reference.ordered:
        found = _in_order_of(candidate.entries, found)
    pairs = tuple(
        Pair(k, rules.canonical(r.layer, "reference"), r, c, "name" if r.name == c.name else "rule")
        for k, (r, c) in enumerate(found)
    )
    return Alignment(
        pairs,
        tuple(entry for entry in reference.entries if id(entry) not in partners),
        tuple(entry for entry in candidate.entries if id(entry) not in taken),
        order,
    )


def _group(dump: Dump, rules: RuleSet, side: Side) -> dict[_Key, list[Entry]]:
    """Entries by layer, port and step; the calls of each in order."""
    groups: dict[_Key, list[Entry]] = defaultdict(list)
    for entry in dump.entries:
        groups[rules.canonical(entry.layer, side), _port(entry.port), entry.step].append(entry)
    return groups


def _port(port: str) -> str:
    """The first of several outputs and the only output are the same port."""
    return "output" if port == "output_0" else port


def _partners(references: dict[_Key, list[Entry]], candidates: dict[_Key, list[Entry]]) -> Iterator[tuple[int, Entry]]:
    for key, calls in references.items():
        for reference, candidate in _pair_calls(calls, candidates.get(key, [])):
            if not reference.is_input or _could_be_same(reference, candidate):
                yield id(reference), candidate


def _pair_calls(calls: Sequence[Entry], others: Sequence[Entry]) -> Iterable[tuple[Entry, Entry]]:
    """In order where both sides have as many; the one of a side to the last that fits; else by number."""
    if len(calls) == len(others):
        return zip(calls, others, strict=True)
    if not others:
        return ()
    if len(calls) == 1:
        return ((calls[0], _last_fitting(calls[0], others)),)
    if len(others) == 1:
        return ((_last_fitting(others[0], calls), others[0]),)
    numbered = {entry.call: entry for entry in reversed(others)}
    firsts = {entry.call: entry for entry in reversed(calls)}.values()
    return [(entry, numbered[entry.call]) for entry in firsts if entry.call in numbered]


def _last_fitting(one: Entry, many: Sequence[Entry]) -> Entry:
    return next((other for other in reversed(many) if _could_be_same(one, other)), many[0])


def _could_be_same(one: Entry, other: Entry) -> bool:
    """Whether shapes allow a pair. An input at the same position may be another argument altogether."""
    try:
        a, b = one.spec, other.spec
    except DumpError:
        return True  # left for measuring to report, with its sentence
    return reconcile(a.shape, b.shape) is not None and (a.dtype.kind in "iub") == (b.dtype.kind in "iub")


def _order(reference: Dump, candidate: Dump, found: Sequence[tuple[Entry, Entry]]) -> Order:
    """Whether what was paired ran in the same sequence on both sides."""
    if not (reference.ordered and candidate.ordered):
        return "unknown"
    place = {id(entry): k for k, entry in enumerate(candidate.entries)}
    places = [place[id(c)] for _, c in found]
    return "same" if places == sorted(places) else "differs"


def _in_order_of(entries: Sequence[Entry], found: list[tuple[Entry, Entry]]) -> list[tuple[Entry, Entry]]:
    place = {id(entry): k for k, entry in enumerate(entries)}
    return sorted(found, key=lambda pair: place[id(pair[1])])
