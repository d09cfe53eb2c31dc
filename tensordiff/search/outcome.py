"""What a whole comparison came to: one verdict, the first culprit, an exit status."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tensordiff.compare.engine import Row
from tensordiff.compare.verdict import VerdictName
from tensordiff.search.culprit import independent


@dataclass(frozen=True)
class Outcome:
    """What a whole comparison came to."""

    rows: tuple[Row, ...]
    unread: tuple[str, ...] = ()
    """Files of the two dumps that could not be read, each with the reason."""

    @cached_property
    def culprit(self) -> Row | None:
        """The first place that is wrong by itself."""
        return next(iter(self.culprits), None)

    @cached_property
    def culprits(self) -> tuple[Row, ...]:
        """Every place that is wrong by itself, the first first; one row a layer."""
        return tuple(independent(self.rows))

    @cached_property
    def verdict(self) -> VerdictName:
        """Of the whole: one culprit is enough to diverge, one pair or file nobody could judge to be unsure."""
        if self.culprit is not None:
            return "diverges"
        names = {row.verdict.name for row in self.rows}
        if not names or "unknown" in names or self.unread:
            return "unknown"
        return "drifts" if "drifts" in names else "agrees"

    @property
    def exit_status(self) -> int:
        """0 agrees, 1 diverges, 2 could not tell."""
        return {"agrees": 0, "drifts": 0, "diverges": 1, "unknown": 2}[self.verdict]
