"""Whether a dump holds two runs: what was left over repeats, under other names, what was compared.

Two runs in one folder (``run_a.layers.0`` and ``run_b.layers.0``) look like one dump of twice as many layers. One of
them finds its partners, or each finds some, and nobody knows whether the rest is right. Their names are the same except
for their beginning. That is also true of blocks (``layers.0.mlp``, ``layers.1.mlp``), but a second run repeats most of
the dump at once, not one block of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice, product
from typing import NamedTuple

from tensordiff.align.coverage import SideCoverage
from tensordiff.dump.model import Entry
from tensordiff.errors import printable

_FEWEST_ENTRIES = 2
_LEAST_SHARE = 0.25
"""The share of a dump that must be left over, and the share of that which must repeat what was compared."""
_EXPLAINED_SHARE = 0.8
"""The share of a dump that two runs must explain."""
_COMMON_SHARE = 0.1
_SAMPLE = 256
_MOST_STARTS = 6
_WORD_END = re.compile(r"(?<=.)[._/\- ]")
_NUMBER = re.compile(r"\d+")
_Key = tuple[str, str, int]


class SecondRun(NamedTuple):
    """How the names of two runs in one dump begin; both are empty if the second run consists of second calls."""

    first: str
    second: str

    @property
    def sentence(self) -> str:
        """The finding in words, to follow the dump's name."""
        if self.first == self.second:
            return "seems to hold two runs, the second as second calls of what ran in the first"
        names = " and ".join(f"{printable(start)}…" if start else "the others" for start in self)
        return f"seems to hold two runs, named alike but for how they begin ({names})"

    def twins(self, entry: Entry) -> Iterator[_Key]:
        """What an entry of one run is called in the other."""
        layer = entry.layer
        for own, other in {self, self[::-1]}:
            if layer.startswith(own):
                yield other + layer[len(own) :], entry.port, entry.step


def second_run(side: SideCoverage) -> SecondRun | None:
    """The two beginnings of names in a dump that seems to hold two runs; None if it holds one.

    Steps of which nothing was compared are not considered here.
    """
    steps = {entry.step for entry in side.compared}
    left = [entry for entry in side.left if entry.step in steps]
    total = len(left) + len(side.compared)
    if len(left) < max(_FEWEST_ENTRIES, _LEAST_SHARE * total):
        return None
    starts = _common_starts((*_sampled(left), *_sampled(side.compared)))
    compared = {_key(entry) for entry in side.compared}
    some = _sampled(left)
    choices = [SecondRun(*two) for two in product(starts, repeat=2) if two[0] < two[1]]
    choices = [one for one in choices if not _are_blocks(one, some)] + [SecondRun("", "")]  # the last: second calls
    best = max(choices, key=lambda one: _count(one, some, compared))
    if _count(best, left, compared) < max(_FEWEST_ENTRIES, _LEAST_SHARE * len(left)):
        return None
    calls = Counter(map(_key, (*side.compared, *left)))
    if best.first == best.second:
        return best if sum(n for n in calls.values() if n > 1) >= _EXPLAINED_SHARE * total else None
    return best if _count(best, (*side.compared, *left), calls.keys()) >= _EXPLAINED_SHARE * total else None


def _are_blocks(run: SecondRun, entries: Sequence[Entry]) -> bool:
    """Whether two beginnings number blocks (``blk.0.``, ``blk.1.``) rather than runs.

    Names within a run have numbers, names within a block do not.
    """
    first, second = (_NUMBER.sub("0", start) for start in run)
    if first != second:
        return False
    rests = [entry.layer[len(start) :] for entry in entries for start in run if entry.layer.startswith(start)]
    return 2 * sum(bool(_NUMBER.search(rest)) for rest in rests) < len(rests)


def _count(run: SecondRun, entries: Sequence[Entry], among: Collection[_Key]) -> int:
    """How many of the entries have a twin among others."""
    return sum(any(twin in among for twin in run.twins(entry)) for entry in entries)


def _key(entry: Entry) -> _Key:
    return entry.layer, entry.port, entry.step


def _sampled(entries: Sequence[Entry]) -> Sequence[Entry]:
    """A few of many entries, evenly spread."""
    return entries[:: -(-len(entries) // _SAMPLE) or 1]


def _common_starts(entries: Sequence[Entry]) -> list[str]:
    """Beginnings, up to a separator, that many names share; and the empty one."""
    starts = Counter(
        entry.layer[: cut.end()] for entry in entries for cut in islice(_WORD_END.finditer(entry.layer), _MOST_STARTS)
    )
    return [
        "",
        *(start for start, count in starts.items() if count >= max(_FEWEST_ENTRIES, _COMMON_SHARE * len(entries))),
    ]
