"""Whether a bug can be seen at all, told without tensordiff: by comparing runs with and without it to the reference.

A bug is shown where an output is further from the reference's than that of a clean port is, several times over. A clean
port is the same model in the candidate's type with sums in another order, or with fused attention. What the culprit is
given must be what the clean port is given there, bit for bit: then the culprit is wrong on right inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from studies.captures import Dumped
from studies.museum.architectures import Architecture
from studies.museum.recording import is_cached, part_of
from studies.trial import rel_l2
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import CallKey, Dump, Entry, EntryKey

SEVERAL = 5.0
"""How many times a clean port's error a bug's must be."""
_ROUNDING = {2: 2.0**-9, 4: 2.0**-24}
"""The least that a clean port's error counts as, by the size of a number: a part of one rounding."""
_LAST_BITS = 2.0**-20
"""Of float32, relative to a token: by no more a token changes that no bug has reached."""


class Runs(NamedTuple):
    """A reference, clean ports of it, and a candidate with a bug."""

    reference: Dump
    clean: tuple[Dump, ...]
    """The first is the candidate without its bug; the others are ports of other kinds."""
    wrong: Dump


class Shown(NamedTuple):
    """How an output stands out."""

    call: CallKey
    ratio: float
    """Its error over that of a clean port."""
    error: float

    @property
    def is_clear(self) -> bool:
        """Whether it stands out several times over."""
        return self.ratio >= SEVERAL


def shown_in(runs: Runs, dumped: Dumped, architecture: Architecture) -> list[Shown]:
    """Every call whose outputs a dump of this kind holds, in order, with the worst of its outputs."""
    parts = [part_of(dump, dumped, architecture) for dump in (runs.reference, runs.wrong)]
    clean = [_by_key(dump.entries) for dump in runs.clean]
    reference = _by_key(parts[0].entries)
    found: dict[CallKey, Shown] = {}
    for entry in parts[1].entries:
        right = reference.get(entry.key)
        if entry.is_input or is_cached(entry) or right is None:
            continue
        shown = _shown(right, entry, [other for one in clean if (other := one.get(entry.key))])
        before = found.get(entry.call_key, shown)
        found[entry.call_key] = max(before, shown, key=lambda one: one.ratio)
    return list(found.values())


def _by_key(entries: Iterable[Entry]) -> dict[EntryKey, Entry]:
    return {entry.key: entry for entry in entries}


def _shown(right: Entry, wrong: Entry, clean: Sequence[Entry]) -> Shown:
    ref, cand = right.read(), wrong.read()
    usual = max((_error(ref, entry.read()) for entry in clean), default=0.0)
    error = _error(ref, cand)
    least = 0.0 if cand.dtype.kind in "iub" else _ROUNDING[min(cand.dtype.itemsize, 4)]
    below = max(usual, least)
    return Shown(wrong.call_key, error / below if below else np.inf if error else 0.0, error)


def _error(ref: Array, other: Array) -> float:
    """rel_l2, of one side broadcast where that fits; of integers the share that differs."""
    if ref.shape != other.shape and ref.ndim == other.ndim:
        try:
            ref, other = np.broadcast_arrays(ref, other)
        except ValueError:
            return np.inf
    if ref.dtype.kind in "iub" and ref.shape == other.shape:
        return float(np.mean(ref != other))
    return rel_l2(ref, other)


def has_right_inputs(runs: Runs, call: CallKey) -> bool:
    """Whether a call is given the same with the bug as without it, bit for bit; what caches hold is left aside."""
    clean, wrong = (_inputs(dump, call) for dump in (runs.clean[0], runs.wrong))
    return clean.keys() == wrong.keys() and all(
        clean[port].shape == wrong[port].shape and clean[port].tobytes() == wrong[port].tobytes() for port in clean
    )


def _inputs(dump: Dump, call: CallKey) -> dict[str, Array]:
    return {
        entry.port: entry.read()
        for entry in dump.entries
        if entry.call_key == call and entry.is_input and not is_cached(entry)
    }


def changed_tokens(runs: Runs, entry: Entry, axis: int) -> set[int] | None:
    """The places along an axis of an output that the bug changes by more than the last bits of float32.

    Those change where an expert is given other tokens beside one, and sums run in another order. None where shapes do
    not allow that.
    """
    sides = [_by_key(dump.entries).get(entry.key) for dump in (runs.clean[0], runs.wrong)]
    if any(side is None for side in sides):
        return None
    clean, wrong = (side.read().astype(np.float64) for side in sides if side is not None)
    if clean.shape != wrong.shape or axis >= clean.ndim:
        return None
    others = tuple(other for other in range(clean.ndim) if other != axis)
    change, size = (np.sqrt(np.square(values).sum(others)) for values in (wrong - clean, clean))
    return set(np.flatnonzero(~(change <= _LAST_BITS * size)).tolist())
