"""``tensordiff.align``: how two runs are paired, without measuring them."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from tensordiff.align.match import PairedBy
from tensordiff.align.rules.file import add_to_file
from tensordiff.align.rules.rule import Side
from tensordiff.align.rules.tables import MapRule
from tensordiff.align.suggest import Suggestion
from tensordiff.dump.model import Entry
from tensordiff.library.comparison import open_sides
from tensordiff.library.run_options import PathLike, RunOptions
from tensordiff.library.runs import ProgressCallback
from tensordiff.session.from_arrays import Arrays
from tensordiff.session.session import Session
from tensordiff.util.sizes import format_percent


class PairedNames(NamedTuple):
    """The names of two paired tensors."""

    name: str
    reference: str
    candidate: str
    by: PairedBy
    views: tuple[str, ...]


class Orphan(NamedTuple):
    """A tensor without a partner, and the reason."""

    side: Side
    name: str
    why: str


@dataclass(frozen=True)
class AlignmentResult:
    """How two runs are paired."""

    session: Session

    def __repr__(self) -> str:
        return f"<{len(self.pairs)} pairs, {len(self.orphans)} orphans, coverage {format_percent(self.coverage)}>"

    @cached_property
    def pairs(self) -> tuple[PairedNames, ...]:
        """The pairs in execution order."""
        return tuple(
            PairedNames(pair.name, pair.reference.name, pair.candidate.name, pair.by, tuple(pair.views))
            for pair in self.session.alignment.pairs
        )

    @cached_property
    def orphans(self) -> tuple[Orphan, ...]:
        """The tensors that are not paired, with the reason."""
        alignment = self.session.alignment
        sides: tuple[tuple[Side, tuple[Entry, ...]], ...] = (
            ("reference", alignment.reference_orphans),
            ("candidate", alignment.candidate_orphans),
        )
        why = self.session.dumps.why_orphan
        return tuple(Orphan(side, entry.name, why(entry, side)) for side, some in sides for entry in some)

    @property
    def coverage(self) -> float:
        """The share of outputs that are paired, on the side with the smaller share."""
        return self.session.alignment.coverage.share

    @property
    def order(self) -> str:
        """Whether both ran in the same order: ``same``, ``differs`` or ``unknown``."""
        return self.session.alignment.order

    @property
    def learned(self) -> tuple[MapRule, ...]:
        """The maps that were learned from the values."""
        return self.session.dumps.learned.maps

    @cached_property
    def suggestions(self) -> tuple[Suggestion, ...]:
        """Orphans that may belong together, judged by their values, which are read on first access."""
        return tuple(self.session.dumps.suggestions())

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Append learned rules, and suggestions that the values prove, to a rules file, as ``align -o`` does."""
        dumps = self.session.dumps
        kept = dumps.kept_rules()
        proven = dumps.maps_of_proven(self.suggestions)
        add_to_file(Path(path), replace(kept, maps=tuple(dict.fromkeys((*kept.maps, *proven)))))
        return Path(path)


def align(
    reference: PathLike | Arrays,
    candidate: PathLike | Arrays,
    *,
    rules: PathLike | None = None,
    learn: bool = True,
    keep: PathLike | None = None,
    progress: ProgressCallback | None = None,
    **options: Unpack[RunOptions],
) -> AlignmentResult:
    """Pair the tensors of two runs; both sides are given as for ``compare``.

    >>> import numpy as np, tensordiff
    >>> x = np.arange(12, dtype=np.float32).reshape(3, 4)
    >>> found = tensordiff.align({"a": x, "b": x + 1}, {"a": x, "c": np.zeros(5)})
    >>> [(pair.reference, pair.candidate) for pair in found.pairs]
    [('a', 'a')]
    >>> [(orphan.side, orphan.name) for orphan in found.orphans]
    [('reference', 'b'), ('candidate', 'c')]
    """
    given: dict[str, Any] = {"rules": rules, "learn": learn, "keep": keep, "progress": progress, "options": options}
    return AlignmentResult(open_sides("align", reference, candidate, **given))
