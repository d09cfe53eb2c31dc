"""A dump of several ranks as one dump.

Every rank of a distributed run writes its own tensors. A tensor that all ranks hold alike is replicated and kept once;
a difference between ranks is a finding. Parts of a tensor are put together: as the dump itself says (``placements``),
along the only axis in which shapes differ, or as values, shapes and conventions prove (``proofs``). If nothing proves
it, the parts stay separate, each under its rank, and the tensor is reported as left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from tensordiff.dump.model import Dump, Entry, Problem, StoredTensor
from tensordiff.dump.ranks.joined_tensor import JoinedRanks, RankPart, fits
from tensordiff.dump.ranks.proofs import RankProofs, as_bytes, first_difference
from tensordiff.dump.statistics import StatisticsTensor
from tensordiff.errors import DumpError

_BLOCK = re.compile(r"(?:^|\.)(\d{1,6})(?=\.|$)")
_SHARD = re.compile(r"\.?_shards\.(\d{1,4})(?=[.(-]|$)")
_PARAMETER = re.compile(r"(?:^|[._])(?:weight|bias|scale|scales|zeros)$")

_Key = tuple[str, str, str, int, int]


@dataclass(frozen=True)
class Joined:
    """The entries of one dump, and what was found while the ranks were joined."""

    entries: tuple[Entry, ...]
    problems: tuple[Problem, ...]


def join_ranks(parts: Iterable[RankPart]) -> Joined:
    """Join the entries of all ranks into one run; the parts of each rank must come in the order it ran."""
    groups: dict[_Key, list[RankPart]] = defaultdict(list)
    by_rank: dict[int, list[_Key]] = defaultdict(list)
    for part in parts:
        item = part.entry
        key = item.name, item.layer, item.port, item.call, item.step
        groups[key].append(part)
        by_rank[part.rank].append(key)
    ordered = _merged([by_rank[rank] for rank in sorted(by_rank)])
    sorted_groups = [sorted(groups[key], key=lambda part: part.rank) for key in ordered]
    proofs = RankProofs(sorted_groups)
    entries: list[Entry] = []
    problems: list[Problem] = list(_missing_parts(sorted_groups))
    for group in sorted_groups:
        group_entries, group_problems = _entries_of_group(group, proofs)
        entries += group_entries
        problems += group_problems
    return Joined(tuple(entries), tuple(problems))


def _missing_parts(groups: Sequence[Sequence[RankPart]]) -> Iterator[Problem]:
    """Report tensors that the dump says are split, and of which fewer ranks hold a part than of others in that step."""
    split = [group for group in groups if any(isinstance(one.split, int) for one in group[0].placements or ())]
    most: dict[int, int] = defaultdict(int)
    for group in split:
        step = group[0].entry.step
        most[step] = max(most[step], len(group))
    for group in split:
        entry = group[0].entry
        if len(group) < most[entry.step]:
            held = f"{len(group)} of {most[entry.step]} ranks hold a part of it"
            yield Problem(entry.name, f"{held}; copy the files of all ranks", is_unread=True)


def join_shards(dump: Dump) -> Dump:
    """Join the tensors of several devices in a dump (``layer._shards.0``, ``layer._shards.1``)."""
    if not any("_shards." in item.layer for item in dump.entries):
        return dump
    groups: dict[_Key, list[RankPart]] = defaultdict(list)
    plain: list[Entry] = []
    firsts: dict[_Key, Entry] = {}
    for item in dump.entries:
        match = _SHARD.search(item.layer)
        if match is None or _PARAMETER.search(item.layer):
            plain.append(item)
        else:
            key = _without_shard(item)
            firsts.setdefault(key, item)
            groups[key].append(RankPart(int(match[1]), item._replace(name=key[0], layer=key[1])))
    several = {key: group for key, group in groups.items() if len(group) > 1}
    if not several:
        return dump
    proofs = RankProofs(list(several.values()), plain)
    wholes = {key: _join_group(group, proofs) for key, group in several.items()}
    entries: list[Entry] = []
    problems: list[Problem] = []
    for item in dump.entries:
        key = _without_shard(item)
        whole = wholes.get(key)
        is_first = whole is not None and firsts[key] is item
        if is_first and whole is not None:
            problems += whole.problems(item.name)
        if whole is None or whole.stored is None:
            entries.append(item)
        elif is_first:
            entries.append(item._replace(name=key[0], layer=key[1], stored=whole.stored))
    return replace(dump, entries=tuple(entries), problems=(*dump.problems, *problems))


def _without_shard(item: Entry) -> _Key:
    name, layer = (_SHARD.sub("", text, count=1) for text in (item.name, item.layer))
    return name, layer, item.port, item.call, item.step


def _merged(sequences: Sequence[Sequence[_Key]]) -> list[_Key]:
    """One order of what all ranks ran: pipeline stages follow one another, experts come where each rank has them."""
    order: list[_Key] = []
    known: set[_Key] = set()
    for sequence in sequences:
        fresh: dict[_Key | None, list[_Key]] = defaultdict(list)
        before: _Key | None = None
        first_known = next((key for key in sequence if key in known), None)
        for key in sequence:
            if key in known:
                before = key
            else:
                fresh[before].append(key)
        if not fresh:
            continue
        if first_known is None:
            order += fresh[None]
        else:
            order = _inserted(order, fresh, first_known)
        known.update(key for keys in fresh.values() for key in keys)
    return order


def _inserted(order: list[_Key], fresh: dict[_Key | None, list[_Key]], first_known: _Key) -> list[_Key]:
    """Insert each run of new keys after the key it followed; a run of a later block goes after all earlier blocks."""
    last_of_block = {(key[4], block): i for i, key in enumerate(order) if (block := _block_of(key)) is not None}
    position = {key: i for i, key in enumerate(order)}
    after: dict[int, list[_Key]] = defaultdict(list)
    for before, keys in fresh.items():
        at = position[before] if before is not None else position[first_known] - 1
        step, block = keys[0][4], _block_of(keys[0])
        if block is not None:
            earlier = (i for (s, b), i in last_of_block.items() if s == step and b < block)
            at = max(at, max(earlier, default=at))
        after[at] += keys
    made = list(after.pop(-1, ()))
    for i, key in enumerate(order):
        made.append(key)
        made += after.get(i, ())
    return made


def _block_of(key: _Key) -> int | None:
    match = _BLOCK.search(key[1])
    return int(match[1]) if match else None


class _JoinResult(NamedTuple):
    """The tensor that parts make, or None with the reason; a finding if replicas differ."""

    stored: StoredTensor | None
    why: str = ""

    def problems(self, name: str) -> list[Problem]:
        """What is wrong with it under its name, if anything."""
        if not self.why:
            return []
        do = "" if self.stored is None else "look for a missing all-reduce or broadcast"
        return [Problem(name, self.why, is_unread=True, do=do)]


def _entries_of_group(group: Sequence[RankPart], proofs: RankProofs) -> tuple[list[Entry], list[Problem]]:
    """The entry that a group makes, or its parts, each under its rank."""
    first = group[0].entry
    if len(group) == 1:
        return [first], []
    whole = _join_group(group, proofs)
    problems = whole.problems(first.name)
    if whole.stored is not None:
        return [first._replace(stored=whole.stored)], problems
    under = [(part.entry, f"._ranks.{part.rank}") for part in group]
    return [item._replace(name=item.name + rank, layer=item.layer + rank) for item, rank in under], problems


def _join_group(group: Sequence[RankPart], proofs: RankProofs) -> _JoinResult:
    declared = [part.placements for part in group]
    is_declared = (
        None not in declared and len({len(placements) for placements in declared if placements is not None}) == 1
    )
    try:
        whole = _join_as_declared(list(group), 0) if is_declared else _join_by_proof(group, proofs)
        return _with_pieces(whole, group, proofs)
    except DumpError as error:
        return _JoinResult(None, f"its ranks cannot be read together ({error})")


def _with_pieces(whole: _JoinResult, group: Sequence[RankPart], proofs: RankProofs) -> _JoinResult:
    """Regroup a fused layer: each rank's part holds some of each fused tensor, and these must be joined one by one."""
    stored = whole.stored
    if not isinstance(stored, JoinedRanks) or stored.split != len(stored.spec.shape) - 1:
        return whole
    pieces = proofs.pieces(group)
    if pieces is None:
        return _JoinResult(None, "each rank holds some query, key and value, and nothing says how much is query")
    return whole._replace(stored=stored._replace(pieces=pieces))


def _join_as_declared(parts: list[RankPart], depth: int) -> _JoinResult:
    """Join the parts as the dump says they are placed, the outermost axis of the mesh first."""
    placements = [
        part.placements[depth] for part in parts if part.placements is not None and depth < len(part.placements)
    ]
    if not placements:
        return _replicas(parts)
    splits = {one.split for one in placements}
    if len(splits) != 1:
        return _JoinResult(None, "its ranks do not say the same of how they are split")
    (split,) = splits
    by_place: dict[int, list[RankPart]] = defaultdict(list)
    for part, one in zip(parts, placements, strict=True):
        by_place[one.place].append(part)
    below = [_join_as_declared(by_place[place], depth + 1) for place in sorted(by_place)]
    why = next((one.why for one in below if one.why), "")
    stored = [one.stored for one in below if one.stored is not None]
    if len(stored) != len(below):
        return _JoinResult(None, why)
    if len(stored) == 1:
        return _JoinResult(stored[0], why)
    if not fits([one.spec for one in stored], split):
        return _JoinResult(None, "its ranks hold shapes that do not fit together")
    if split == "replicated":
        holders = [by_place[place][0] for place in sorted(by_place)]
        entries = [part._replace(entry=part.entry._replace(stored=s)) for part, s in zip(holders, stored, strict=True)]
        result = _replicas(entries)
        return result._replace(why=why or result.why)
    return _JoinResult(JoinedRanks(tuple(stored), split), why)


def _replicas(parts: Sequence[RankPart]) -> _JoinResult:
    """Parts that should be equal: the first, and if another differs, by how much."""
    entries = [part.entry for part in parts]
    if len({entry.spec for entry in entries}) != 1:
        return _JoinResult(None, "its ranks hold shapes that do not fit together")
    differing = first_difference(entries)
    if differing is None:
        return _JoinResult(entries[0].stored)
    most = _distance(entries[0], entries[differing])
    ranks = f"ranks {parts[0].rank} and {parts[differing].rank}"
    apart = f"is replicated, and {ranks} hold different values (by up to {most:.3g})"
    return _JoinResult(entries[0].stored, f"{apart}; rank {parts[0].rank}'s was compared")


def _join_by_proof(group: Sequence[RankPart], proofs: RankProofs) -> _JoinResult:
    """Join parts about which the dump says nothing."""
    parts = _without_repeats(group)
    if len(parts) == 1:
        return _JoinResult(parts[0].entry.stored)
    entries = [part.entry for part in parts]
    specs = [entry.spec for entry in entries]
    ranks = f"ranks {parts[0].rank} and {parts[1].rank}"
    if any(isinstance(entry.stored, StatisticsTensor) for entry in entries):
        return _JoinResult(None, f"{ranks} hold different statistics, which cannot be put together; dump the values")
    if len(set(specs)) > 1:
        axes = [axis for axis in range(len(specs[0].shape)) if fits(specs, axis)]
        if len(axes) != 1:
            return _JoinResult(None, "its ranks hold shapes that do not fit together")
        return _JoinResult(JoinedRanks(tuple(entry.stored for entry in entries), axes[0]))
    split = proofs.split_of(entries)
    if split is None:
        return _JoinResult(None, f"{ranks} hold different values, and nothing proves how they are split")
    if split == "replicated":
        return _replicas(parts)
    return _JoinResult(JoinedRanks(tuple(entry.stored for entry in entries), split))


def _without_repeats(group: Sequence[RankPart]) -> Sequence[RankPart]:
    """One of each distinct part, if each is held by equally many ranks: replicas of the run, or of heads."""
    kinds: dict[bytes, list[RankPart]] = defaultdict(list)
    for part in group:
        kinds[blake2b(as_bytes(part.entry).data).digest() + repr(part.entry.spec).encode()].append(part)
    if len(kinds) == 1:
        return group[:1]
    counts = {len(parts) for parts in kinds.values()}
    if counts == {1} or len(counts) > 1:
        return group
    return [parts[0] for parts in kinds.values()]


def _distance(one: Entry, other: Entry) -> float:
    with np.errstate(all="ignore"):
        a, b = one.read().astype(np.complex128), other.read().astype(np.complex128)
        return float(np.max(np.abs(a - b), initial=0.0))
