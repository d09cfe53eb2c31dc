"""What the measured numbers show of each side: NaN, overflow, zeros, blocks that are the same, broken chains.

Measuring has looked at every value of what is paired, so that a compare need not read it all again to ask whether its
dumps are sound. What a number only hints at (two blocks of one RMS) is looked up in the few entries concerned. What
is not paired is seen by ``dump.lint`` alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np

from tensordiff.align.index import Computed
from tensordiff.collector import collector_held
from tensordiff.compare.row import Row
from tensordiff.compare.sums import Diff
from tensordiff.dump.dtypes import Array
from tensordiff.dump.finding import SHOWN, Finding, breaks_found, inf_found, nan_found, same_found, zeros_found
from tensordiff.dump.lint import Place, block_part, by_port, chunks, is_never_zero, overflows, place_before, place_of
from tensordiff.dump.model import Entry

_NEAR = 1e-6  # of itself: an RMS is known better than this, and other values hardly have one so near
_APART = 1e-3  # ... and what is further off is of other values


class _Seen(NamedTuple):
    """What was measured of one entry."""

    entry: Entry
    rms: float
    """Of its finite values; NaN where the numbers do not say."""
    nan: int
    inf: int


def lint_rows(rows: Iterable[Row]) -> Iterator[Finding]:
    """Findings about the values of both sides, from the rows of a comparison."""
    measured = [row for row in rows if row.diff is not None and row.diff.elements]
    with collector_held():
        reference, candidate = (list(_findings(_seen(measured, side))) for side in (0, 1))
    for finding in reference:
        yield _named("both sides" if finding in candidate else "reference", finding)
    for finding in candidate:
        if finding not in reference:
            yield _named("candidate", finding)


def _named(side: str, finding: Finding) -> Finding:
    return finding._replace(where=f"{side}: {finding.where}" if finding.where else side)


def _seen(rows: Sequence[Row], side: int) -> list[_Seen]:
    """Every entry of a side, or expression, once."""
    found: dict[int, _Seen] = {}
    for row in rows:
        entry = row.pair.candidate if side else row.pair.reference
        if row.diff is not None:
            found[id(entry)] = _Seen(entry, _rms(row.diff, side), row.diff.nan[side], row.diff.inf[side])
    return list(found.values())


def _rms(diff: Diff, side: int) -> float:
    """A side's own; the candidate's follows from its distance and how far it points the same way."""
    if not side or diff.ref_rms == 0:
        return diff.rms if side else diff.ref_rms
    squared = diff.rel_l2 * diff.rel_l2 + 2 * diff.scale - 1
    if squared > _APART:
        return diff.ref_rms * math.sqrt(squared)
    return 0.0 if diff.scale == 0 and diff.rel_l2 == 1 else math.nan


def _findings(seen: list[_Seen]) -> Iterator[Finding]:
    yield from nan_found([(one.entry.name, one.nan) for one in seen if one.nan])
    yield from inf_found([(name, count) for name, count in _overflows(seen) if count])
    zeros = (one.entry for one in seen if one.rms == 0 and not one.nan and not one.inf and is_never_zero(one.entry))
    yield from zeros_found(*by_port(entry for entry in zeros if _is_zero(entry)))
    lying = [one for one in seen if not isinstance(one.entry.stored, Computed)]  # what a block gave or got, as it did
    yield from same_found(_identical(lying))
    yield from breaks_found(_breaks(lying))


def _overflows(seen: Sequence[_Seen]) -> Iterator[tuple[str, int]]:
    """How many +inf the first that hold infinities have: the numbers do not tell them from a mask's -inf."""
    for one in islice((one for one in seen if one.inf and "mask" not in one.entry.name.lower()), SHOWN):
        yield one.entry.name, sum(map(overflows, chunks(one.entry.read())))


def _is_zero(entry: Entry) -> bool:
    """Whether all is zero indeed, and not only too small to be squared."""
    return not any(part.any() for part in chunks(entry.read()))


def _identical(seen: Sequence[_Seen]) -> Iterator[list[str]]:
    """Entries of several blocks that have one RMS, and then the same bytes; no more than a few are looked up."""
    alike = (run for group in _kin(seen) for near in _runs(group) for run in _parts(near))
    return islice((names for run in alike if len(names := _same(run)) > 1), SHOWN + 1)


def _kin(seen: Iterable[_Seen]) -> Iterable[list[_Seen]]:
    """Outputs by the last part of their names: quicker told than all that ``block_part`` asks."""
    groups: dict[tuple[str, str], list[_Seen]] = defaultdict(list)
    for one in seen:
        if 0 < one.rms < math.inf and not one.entry.is_input:
            last = one.entry.layer.rpartition(".")[2]
            groups["" if last.isdigit() else last, one.entry.port].append(one)
    return groups.values()


def _runs(group: list[_Seen]) -> Iterator[list[_Seen]]:
    """Those whose RMS lie next to each other, more than one of them, in the order of execution."""
    ranked = sorted(range(len(group)), key=lambda k: group[k].rms)
    cuts = [at for at, (a, b) in enumerate(pairwise(ranked), 1) if group[b].rms > group[a].rms * (1 + _NEAR)]
    for begin, end in pairwise((0, *cuts, len(ranked))):
        if end - begin > 1:
            yield [group[k] for k in sorted(ranked[begin:end])]


def _parts(near: Iterable[_Seen]) -> Iterator[list[Entry]]:
    """Those that are one part of several blocks."""
    groups: dict[tuple[object, ...], list[Entry]] = defaultdict(list)
    for one in near:
        if (place := block_part(one.entry)) is not None:
            groups[(*place, one.entry.spec.dtype, one.entry.spec.size)].append(one.entry)
    return (group for group in groups.values() if len(group) > 1)


def _same(run: Sequence[Entry]) -> list[str]:
    """The first and all that hold its bytes; nothing where it is one value all over."""
    first, *others = run
    flat = first.read().reshape(-1)
    if all((part == flat[0]).all() for part in chunks(flat)):
        return []
    return [first.name, *(other.name for other in others if _have_same_bytes(first, other))]


def _have_same_bytes(one: Entry, other: Entry) -> bool:
    parts = zip(chunks(one.read()), chunks(other.read()), strict=True)
    return all(np.array_equal(_bytes(a), _bytes(b)) for a, b in parts)


def _bytes(part: Array) -> Array:
    return np.ascontiguousarray(part).view(np.uint8)


def _breaks(seen: Sequence[_Seen]) -> Iterator[tuple[str, str]]:
    """Blocks that got nothing of the RMS that the one before gave, in that shape."""
    got: dict[Place, list[_Seen]] = defaultdict(list)
    for one in seen:
        if one.entry.is_input and (place := place_before(one.entry))[0]:
            got[place].append(one)
    layers = {layer for layer, _, _ in got}
    outputs = (one for one in seen if one.entry.layer in layers and one.entry.port in ("output", "output_0"))
    for gave in outputs:
        given = [one for one in got[place_of(gave.entry)] if one.entry.spec == gave.entry.spec]
        if given and all(abs(one.rms - gave.rms) > _APART * max(one.rms, gave.rms) for one in given):
            yield given[0].entry.name, gave.entry.name
