"""What another alignment of the same dumps changes: pairs gained, pairs lost, by name."""

from __future__ import annotations

from typing import NamedTuple

from tensordiff.align.match import Alignment, Pair


class Changes(NamedTuple):
    """What is paired now and was not, and the other way round."""

    gained: tuple[Pair, ...]
    lost: tuple[Pair, ...]
    pairs: int
    reference_orphans: int
    candidate_orphans: int

    @property
    def any(self) -> bool:
        """Whether there is a difference."""
        return bool(self.gained or self.lost)


def changes(before: Alignment, after: Alignment) -> Changes:
    """What the second alignment does to the first."""
    old, new = ({pair_key(pair): pair for pair in one.pairs} for one in (before, after))
    gained = tuple(pair for key, pair in new.items() if key not in old)
    lost = tuple(pair for key, pair in old.items() if key not in new)
    orphans = len(after.reference_orphans), len(after.candidate_orphans)
    return Changes(gained, lost, len(after.pairs), *orphans)


def pair_key(pair: Pair) -> tuple[str, str, int, tuple[str, ...]]:
    """What makes two pairs the same: both entries, and how they are seen."""
    return pair.reference.name, pair.candidate.name, pair.reference.step, tuple(pair.views)
