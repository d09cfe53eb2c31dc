"""What a comparison has to tell someone who was not there: made once, and told by every format alike.

A format decides how a thing looks; what is told, which rows, which sentence, in which order, is decided here and
nowhere else. There is no clock in a story unless somebody asked for a stamp: the same comparison makes the same bytes.

Whether both sides ran in the same order, in sentences.

The first sentence of a report: the culprit and the evidence, or that there is none.

What the dumps say of their runs, side by side, and what was asked of the comparison.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from tensordiff import __version__
from tensordiff.align.order import OrderDifference, order_differences
from tensordiff.align.rules.rule import Side
from tensordiff.compare.judge.verdict import VerdictName
from tensordiff.compare.lint import lint_pair, lint_rows
from tensordiff.compare.look.logits import LogitsDiff
from tensordiff.compare.row import Row
from tensordiff.dump.lint import Finding
from tensordiff.dump.model import Dump
from tensordiff.errors import printable
from tensordiff.report.compared import Asked, Compared
from tensordiff.report.json import summary
from tensordiff.report.labels import GLYPHS, counted, cut, label, name_of, number, shape_of, short
from tensordiff.report.row_detail import Close, close_up
from tensordiff.search.outcome import Outcome, culprits

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
    differences: tuple[OrderDifference, ...]


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
    logits: LogitsDiff | None
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
    parts = order_differences(session.reference, session.candidate, found) if alignment.order == "differs" else []
    return Order(alignment.order, alignment.order_from, tuple(parts))


def _orphans(session: Compared) -> Iterator[Orphan]:
    sides: tuple[tuple[Side, Any], ...] = (
        ("reference", session.alignment.reference_orphans),
        ("candidate", session.alignment.candidate_orphans),
    )
    for side, entries in sides:
        for entry in entries:
            yield Orphan(side, name_of(entry), session.why_orphan(entry, side))


_SHOWN = 20


def order_sentences(order: Order) -> Iterator[str]:
    """What is known of the order, and where the two part ways."""
    if order.name == "same":
        yield "Both sides ran the paired layers in the same order."
        return
    if order.name == "unknown":
        source = {"values": "recovered from the values", "names": "guessed from the names"}
        taken = source.get(order.taken_from, f"that of the {order.taken_from}")
        yield f"Not known: a dump carries no order. The order shown is {taken}."
        return
    yield f"The order differs at {len(order.differences)} positions; shown is that of the {order.taken_from}."
    for part in order.differences[:_SHOWN]:
        yield f"  position {part.position}: {printable(part.reference)} against {printable(part.candidate)}"
    if len(order.differences) > _SHOWN:
        yield f"  and {len(order.differences) - _SHOWN} more"


def sentence(outcome: Outcome) -> str:
    """What a comparison came to."""
    if outcome.culprit is not None:
        return _of_culprit(outcome.culprit)
    if outcome.verdict == "unknown":
        return _of_unknown(outcome)
    worst = _worst(outcome.rows)
    largest = f"the largest rel_l2 is {number(worst.diff.rel_l2)}, at {short(label(worst.pair))}" if worst.diff else ""
    if outcome.verdict == "agrees":
        return f"The two runs agree in all of {counted(len(outcome.rows), 'pair')}: {largest}."
    drifting = sum(row.verdict.name == "drifts" for row in outcome.rows)
    return f"Nothing diverges, and {drifting} of {counted(len(outcome.rows), 'pair')} drift: {largest}."


def named_in(outcome: Outcome) -> str:
    """The name that the sentence has in it; empty where there is none."""
    if outcome.culprit is not None:
        return short(label(outcome.culprit.pair))
    unknown = next((row for row in outcome.rows if row.verdict.name == "unknown"), None)
    if outcome.verdict == "unknown":
        return short(label(unknown.pair)) if unknown else ""
    return short(label(_worst(outcome.rows).pair))


def scope_sentence(shown: int, total: int) -> str:
    """Which rows a report of some rows shows."""
    return f"Shown here: {shown} of {counted(total, 'pair')}, as selected."


def _of_culprit(row: Row) -> str:
    what = "tensor that differs" if row.is_input else "place that is wrong by itself"
    return f"{short(label(row.pair))} is the first {what}: {printable(row.verdict.why)}{_evidence(row)}."


def _evidence(row: Row) -> str:
    if row.diff is None:
        return ""
    at = shape_of(row.diff.max_abs_index or ())
    golden = (
        ""
        if row.golden_ratio is None
        else f"; {row.golden_ratio:.3g} times the reference's own error against the golden"
    )
    return f"; largest |Δ| {row.diff.max_abs:.3g} at {at} of {shape_of(row.shape)}{golden}"


def _of_unknown(outcome: Outcome) -> str:
    begin = "It could not be told whether the two runs agree"
    unknown = [row for row in outcome.rows if row.verdict.name == "unknown"]
    if unknown:
        first = f"first {short(label(unknown[0].pair))}: {printable(unknown[0].verdict.why)}"
        return f"{begin}: {len(unknown)} of {counted(len(outcome.rows), 'pair')} could not be compared, {first}."
    return f"{begin}: {outcome.unread[0] if outcome.unread and outcome.rows else 'nothing was paired'}."


def _worst(rows: Sequence[Row]) -> Row:
    return max(rows, key=lambda row: _rank(row.diff.rel_l2 if row.diff else -1.0))


def _rank(value: float) -> tuple[bool, float]:
    return math.isnan(value), value


_LONGEST = 200


class Fact(NamedTuple):
    """One thing both runs may say of themselves; empty where one does not."""

    name: str
    reference: str
    candidate: str

    @property
    def differs(self) -> bool:
        """Whether both say it, and not the same."""
        return bool(self.reference and self.candidate) and self.reference != self.candidate


def facts_of_both(reference: Mapping[str, object], candidate: Mapping[str, object]) -> tuple[Fact, ...]:
    """Everything either dump says, by name, in the reference's order."""
    ours, theirs = dict(_flat(reference)), dict(_flat(candidate))
    names = dict.fromkeys((*ours, *theirs))
    return tuple(Fact(printable(name), ours.get(name, ""), theirs.get(name, "")) for name in names)


def _flat(facts: Mapping[str, object], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif value is not None:
            yield f"{before}{name}", cut(printable(_text(value)), _LONGEST)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def settings_of(asked: Asked) -> tuple[tuple[str, str], ...]:
    """How the comparison was made: what the user said, and by which tensordiff."""
    limits = asked.limits
    said = (
        ("rules", asked.rules), ("tolerances", asked.tolerances), ("injected", asked.injected),
        ("golden", asked.golden), ("atol", limits.tolerance and limits.tolerance.atol),
        ("rtol", limits.tolerance and limits.tolerance.rtol), ("threshold", limits.threshold),
        ("step", asked.step), ("only", asked.only), ("tensordiff", __version__),
    )  # fmt: skip
    return tuple((name, printable(value)) for name, value in said if value is not None)
