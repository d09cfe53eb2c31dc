"""The first sentence of a report: the culprit and the evidence, or that there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensordiff.compare.engine import Row
from tensordiff.errors import printable
from tensordiff.report.words import counted, label, number, shape_of, short
from tensordiff.search.outcome import Outcome


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
