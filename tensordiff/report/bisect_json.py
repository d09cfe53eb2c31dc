"""The JSON of ``bisect``: the answer, the suspects, and every place that was judged."""

from __future__ import annotations

from typing import Any

from tensordiff.report.compare_json import culprit_json
from tensordiff.search.bisect import ASSUMPTION, Mark
from tensordiff.search.bisect_outcome import BisectOutcome

SCHEMA = "tensordiff.bisect/1"


def bisect_json(outcome: BisectOutcome) -> dict[str, Any]:
    """A whole search as one object."""
    bisect, check = outcome.bisect, outcome.check
    return {
        "schema": SCHEMA,
        "assumption": ASSUMPTION,
        "places": len(bisect.places),
        "first_bad": _first_bad(outcome),
        "suspects": [_place(outcome, at) for at in _suspects(outcome)],
        "probes": [_judged(outcome, at, mark) for mark, at in bisect.marks],
        "checks": [_judged(outcome, at, check.marks[at]) for at in check.looked] if check else [],
        "monotone": check.is_monotone if check else None,
        "verdict": outcome.verdict,
    }


def _first_bad(outcome: BisectOutcome) -> dict[str, Any] | None:
    found = culprit_json(outcome.first_bad)
    return None if found is None else found | {"why": outcome.why_bad}


def _suspects(outcome: BisectOutcome) -> range:
    return range(0) if outcome.bisect.all_good else outcome.bisect.suspects


def _place(outcome: BisectOutcome, at: int) -> dict[str, Any]:
    pair = outcome.oracle.pairs[at]
    return {"index": pair.index, "name": pair.name, "port": pair.reference.port}


def _judged(outcome: BisectOutcome, at: int, mark: Mark) -> dict[str, Any]:
    row = outcome.oracle.row(at)
    rel_l2 = row.diff.rel_l2 if row.diff else None
    return _place(outcome, at) | {"rel_l2": rel_l2, "verdict": row.verdict.name, "mark": mark}
