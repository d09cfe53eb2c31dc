"""What a comparison has to tell someone who was not there: made once, and told by every format alike.

A format decides how a thing looks; what is told, which rows, which sentence, in which order, is decided here and
nowhere else. There is no clock in a story unless somebody asked for a stamp: the same comparison makes the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from tensordiff.align.order import Part, order_parts
from tensordiff.align.rules import Side
from tensordiff.compare.engine import Row
from tensordiff.compare.lint import Finding, lint_pair
from tensordiff.compare.lint_rows import lint_rows
from tensordiff.compare.logits import Logits
from tensordiff.compare.verdict import VerdictName
from tensordiff.dump.model import Dump
from tensordiff.errors import printable
from tensordiff.report.close import Close, close_up
from tensordiff.report.compare_json import summary
from tensordiff.report.compared import Compared
from tensordiff.report.facts import Fact, facts_of_both, settings_of
from tensordiff.report.sentence import scope_sentence, sentence
from tensordiff.report.words import GLYPHS, name_of
from tensordiff.search.culprit import culprits
from tensordiff.search.outcome import Outcome

_CLOSE_UPS = 20


class Orphan(NamedTuple):
    """An entry without a pair."""

    side: Side
    name: str
    why: str


class Order(NamedTuple):
    """Whether both sides ran in the same order."""

    name: str
    taken_from: str
    differences: tuple[Part, ...]


class SideOf(NamedTuple):
    """One of the two dumps, in few words."""

    path: str
    format: str
    entries: int
    orphans: int


@dataclass(frozen=True)
class Story:
    """All that a report tells."""

    title: str
    sentence: str
    scope: str
    """Which of the pairs are shown; empty where all are."""
    stamp: str | None
    outcome: Outcome
    """Of the whole comparison, whatever is shown of it."""
    rows: tuple[Row, ...]
    """What is shown, in execution order."""
    closes: tuple[Close, ...]
    """A closer look: at the culprit, or at what was selected."""
    reference: SideOf
    candidate: SideOf
    coverage: float
    order: Order
    orphans: tuple[Orphan, ...]
    findings: tuple[Finding, ...]
    logits: Logits | None
    settings: tuple[tuple[str, str], ...]
    facts: tuple[Fact, ...]
    has_injected: bool
    has_golden: bool

    @property
    def verdict(self) -> VerdictName:
        """Of the whole."""
        return self.outcome.verdict

    @cached_property
    def outputs(self) -> tuple[Row, ...]:
        """What layers gave; where only inputs are shown, those."""
        return tuple(row for row in self.rows if not row.is_input) or self.rows

    @cached_property
    def counts(self) -> dict[VerdictName, int]:
        """How many rows of each verdict are shown."""
        return {name: sum(row.verdict.name == name for row in self.rows) for name in GLYPHS}

    @cached_property
    def culprits(self) -> tuple[Row, ...]:
        """Every place that is wrong by itself."""
        return tuple(culprits(self.outcome.rows))

    @cached_property
    def holders(self) -> tuple[Row, ...]:
        """Outputs that diverge because a culprit lies inside them."""
        named = {id(row) for row in self.culprits}
        wrong = (row for row in self.outcome.rows if row.verdict.name == "diverges" and not row.is_input)
        return tuple(row for row in wrong if id(row) not in named)

    @cached_property
    def victims(self) -> tuple[Row, ...]:
        """Outputs that are wrong because of what came before."""
        if not self.culprits:
            return ()
        first = self.culprits[0].pair.index
        later = (row for row in self.outcome.rows if row.pair.index > first and not row.is_input)
        return tuple(row for row in later if row.verdict.name == "drifts")

    @cached_property
    def statistics(self) -> dict[str, Any]:
        """MSE over outputs, in all and by component."""
        return summary(self.rows)


def tell(
    session: Compared,
    outcome: Outcome,
    rows: Sequence[Row] | None = None,
    title: str | None = None,
    stamp: str | None = None,
) -> Story:
    """The story of a comparison, or of some of its rows; reads what is looked at closely again."""
    shown = outcome.rows if rows is None else tuple(rows)
    alignment = session.alignment
    return Story(
        printable(title or f"{_called(session.candidate)} against {_called(session.reference)}"),
        sentence(outcome),
        scope_sentence(len(shown), len(outcome.rows)) if rows is not None else "",
        stamp and printable(stamp),
        outcome,
        shown,
        tuple(close_up(session, outcome, row) for row in _closely(outcome, rows)),
        *_sides(session),
        alignment.coverage,
        _order(session),
        tuple(_orphans(session)),
        (*lint_pair(session.reference, session.candidate, alignment), *lint_rows(outcome.rows)),
        session.logits(outcome.rows),
        settings_of(session.request),
        facts_of_both(session.reference.facts, session.candidate.facts),
        session.engine.injected is not None,
        session.engine.golden is not None,
    )


def _called(dump: Dump) -> str:
    """The last part of its path; of ``.`` that of the folder it means."""
    return dump.path.name or dump.path.resolve().name


def _closely(outcome: Outcome, rows: Sequence[Row] | None) -> Sequence[Row]:
    if rows is not None:
        return rows[:_CLOSE_UPS]
    return () if outcome.culprit is None else (outcome.culprit,)


def _sides(session: Compared) -> tuple[SideOf, SideOf]:
    orphans = session.alignment.reference_orphans, session.alignment.candidate_orphans
    reference, candidate = (
        SideOf(printable(dump.path), dump.format, len(dump), len(alone))
        for dump, alone in zip((session.reference, session.candidate), orphans, strict=True)
    )
    return reference, candidate


def _order(session: Compared) -> Order:
    alignment = session.alignment
    found = [(pair.reference, pair.candidate, pair.by) for pair in alignment.pairs]
    parts = order_parts(session.reference, session.candidate, found) if alignment.order == "differs" else []
    return Order(alignment.order, alignment.order_from, tuple(parts))


def _orphans(session: Compared) -> Iterator[Orphan]:
    sides: tuple[tuple[Side, Any], ...] = (
        ("reference", session.alignment.reference_orphans),
        ("candidate", session.alignment.candidate_orphans),
    )
    for side, entries in sides:
        for entry in entries:
            yield Orphan(side, name_of(entry), session.why_orphan(entry, side))
