"""What a report needs of a session, and no more: reports stand below the session and never import it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from tensordiff.align.match import Alignment, Pair
from tensordiff.align.rules.rule import Side
from tensordiff.compare.engine import Engine
from tensordiff.compare.hint import Hint
from tensordiff.compare.limits import Limits
from tensordiff.compare.look.elements import Element
from tensordiff.compare.look.logits import LogitsDiff
from tensordiff.compare.row import Row
from tensordiff.dump.model import Dump, Entry


class Asked(Protocol):
    """What to compare and how, as the user said it."""

    @property
    def rules(self) -> Path | None:
        """Rules for names."""

    @property
    def tolerances(self) -> Path | None:
        """Tolerances by layer."""

    @property
    def golden(self) -> Path | None:
        """The run in higher precision."""

    @property
    def injected(self) -> Path | None:
        """The candidate given the reference's inputs."""

    @property
    def limits(self) -> Limits:
        """What was said for all layers."""

    @property
    def step(self) -> int | None:
        """Only this step."""

    @property
    def only(self) -> str | None:
        """Only layers named like this."""


class Compared(Protocol):
    """Two opened dumps and how their entries are paired."""

    @property
    def request(self) -> Asked:
        """What was asked for."""

    @property
    def reference(self) -> Dump:
        """The side that is trusted."""

    @property
    def candidate(self) -> Dump:
        """The side under test."""

    @property
    def alignment(self) -> Alignment:
        """All pairs, plus the orphans."""

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The pairs that were asked for."""

    @property
    def engine(self) -> Engine:
        """What measured them."""

    def hint(self, row: Row) -> Hint | None:
        """What kind of error a row shows."""

    def worst(self, row: Row, count: int) -> list[Element]:
        """A row's largest errors."""

    def logits(self, rows: Iterable[Row]) -> LogitsDiff | None:
        """How far apart the logits are."""

    def why_orphan(self, entry: Entry, side: Side) -> str:
        """Why an entry has no partner."""
