"""The JSON objects of a comparison, a binary search and a comparison of weights, as ``--json`` prints them.

Scripts rely on the keys: keys may be added but never renamed. The JSON is strict: non-finite numbers become strings.
The keys for weights are those of ``compare`` where they fit (docs/weights.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tensordiff.compare.hint import Hint
from tensordiff.compare.look.logits import LogitsDiff
from tensordiff.compare.row import Row
from tensordiff.dump.lint import Finding
from tensordiff.dump.model import Dump
from tensordiff.report.labels import component
from tensordiff.search.bisect import ASSUMPTION, Mark
from tensordiff.search.bisect_outcome import BisectOutcome
from tensordiff.search.outcome import Outcome
from tensordiff.session.session import Session

if TYPE_CHECKING:  # importing it is slow, and few commands need it
    from tensordiff.weights.comparison import ParameterRow, WeightsComparison, WeightsOutcome

COMPARE_SCHEMA = "tensordiff.compare/1"


def strict(value: Any) -> Any:
    """Replace non-finite numbers, which JSON does not have, by strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value


def dumps(value: Any) -> str:
    """Strict JSON text, without control characters or lone surrogates from untrusted names."""
    return json.dumps(strict(value), allow_nan=False, ensure_ascii=True)


def compare_json(
    session: Session,
    outcome: Outcome,
    findings: Iterable[Finding],
    logits: LogitsDiff | None = None,
    hint: Hint | None = None,
) -> dict[str, Any]:
    """A whole comparison as one object; ``hint`` is the culprit's."""
    alignment, coverage = session.alignment, outcome.coverage or session.alignment.coverage
    return {
        "schema": COMPARE_SCHEMA,
        "reference": _dump(session.reference),
        "candidate": _dump(session.candidate),
        "alignment": {
            "pairs": len(alignment.pairs),
            "coverage": round(coverage.share, 4),
            "coverage_bytes": round(coverage.share_of_bytes, 4),
            "order": alignment.order,
            "orphans": {
                "reference": [entry.name for entry in alignment.reference_orphans],
                "candidate": [entry.name for entry in alignment.candidate_orphans],
            },
            "left_out": left_out_json(session, outcome),
            "unanswered_output": outcome.unanswered or None,
            "learned": [rule.as_json() for rule in session.dumps.learned.rules],
            "namesakes": [vars(one) for one in session.dumps.learned.namesakes],
        },
        "coverage": coverage.as_json()
        | {
            "minimum": session.request.min_coverage / 100,
            "in_part": [row.pair.reference.name for row in outcome.in_part],
        },
        "lint": [finding._asdict() for finding in findings],
        "pairs": [row_json(row, hint if row is outcome.culprit else None) for row in outcome.rows],
        "culprit": _hinted(culprit_json(outcome.culprit), hint, _weights(session, outcome)),
        "culprits": [culprit_json(row) for row in outcome.culprits],
        "verdict": outcome.verdict,
        "doubts": list(outcome.reasons),
        "summary": mse_summary(outcome.rows) | {"logits": logits and logits.as_json()},
    }


def left_out_json(session: Session, outcome: Outcome) -> list[dict[str, Any]]:
    """Tensors that were not compared: files that were not read, and pairs that could not be measured."""
    sides = (("reference", session.reference), ("candidate", session.candidate))
    unread = [
        {"side": side, "name": problem.file, "why": problem.sentence}
        for side, dump in sides
        for problem in dump.problems
        if problem.is_unread
    ]
    unknown = (row for row in outcome.rows if row.diff is None)
    return unread + [{"side": "both", "name": row.pair.name, "why": row.verdict.why} for row in unknown]


def _dump(dump: Dump) -> dict[str, Any]:
    return {
        "path": str(dump.path),
        "format": dump.format,
        "entries": len(dump),
        "source": dump.facts.get("source"),
    }


def row_json(row: Row, hint: Hint | None = None) -> dict[str, Any]:
    """One measured pair as an object."""
    reference, candidate = row.pair.reference, row.pair.candidate
    return {
        "index": row.pair.index, "name": row.pair.name, "port": reference.port,
        "step": reference.step, "call": reference.call,
        "reference": reference.name, "candidate": candidate.name, "by": row.pair.by,
        "views": list(row.views), "dtype": row.dtypes, "shape": row.shape,
        "diff": row.diff and row.diff.as_json(), "injected": row.injected and row.injected.as_json(),
        "golden_ratio": row.golden_ratio, "hint": hint and hint._asdict(),
        "verdict": row.verdict.name, "why": row.verdict.why,
        "amplification": row.amplification, "downcast": row.downcast,
    }  # fmt: skip


def culprit_json(row: Row | None) -> dict[str, Any] | None:
    """The short form of a row: where to look first."""
    if row is None:
        return None
    whole = row_json(row)
    return {key: whole[key] for key in ("index", "name", "port", "reference", "candidate", "why")}


def _hinted(culprit: dict[str, Any] | None, hint: Hint | None, weights: str | None) -> dict[str, Any] | None:
    return culprit and culprit | {"hint": hint and hint._asdict(), "weights": weights}


def _weights(session: Session, outcome: Outcome) -> str | None:
    """What is known about the culprit's weights."""
    found = session.layer_weights(outcome.culprit) if outcome.culprit is not None else None
    return found and found.sentence


def mse_summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Statistics of the outputs' MSE, overall and by component."""
    measured = [(component(row.pair.name), row.diff.mse) for row in rows if row.diff and not row.is_input]
    groups: dict[str, list[float]] = {}
    for name, mse in measured:
        groups.setdefault(name, []).append(mse)
    return {
        "mse": statistics_of([mse for _, mse in measured]),
        "components": {name: {"pairs": len(some), "mse": statistics_of(some)} for name, some in sorted(groups.items())},
    }


def statistics_of(values: Sequence[float]) -> dict[str, float | int | None]:
    """Minimum, maximum, mean and median of the finite values, and their number; None if there are none."""
    import statistics  # imports decimal and fractions, which text output does not need

    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return {"min": None, "max": None, "mean": None, "median": None, "finite": 0}
    return {
        "min": min(finite), "max": max(finite), "mean": statistics.fmean(finite),
        "median": statistics.median(finite), "finite": len(finite),
    }  # fmt: skip


BISECT_SCHEMA = "tensordiff.bisect/1"


def bisect_json(outcome: BisectOutcome) -> dict[str, Any]:
    """A binary search as one object."""
    bisect, check = outcome.bisect, outcome.check
    return {
        "schema": BISECT_SCHEMA,
        "assumption": ASSUMPTION,
        "places": len(bisect.points),
        "first_bad": _first_bad(outcome),
        "suspects": [_place(outcome, at) for at in _suspects(outcome)],
        "probes": [_judged(outcome, at, mark) for mark, at in bisect.marks],
        "checks": [_judged(outcome, at, check.marks[at]) for at in check.checked] if check else [],
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


WEIGHTS_SCHEMA = "tensordiff.weights/1"


def weights_json(
    comparison: WeightsComparison, outcome: WeightsOutcome, schema: str = WEIGHTS_SCHEMA
) -> dict[str, Any]:
    """A comparison of weights as one object."""
    measured = [row.diff.mse for row in outcome.rows if row.diff is not None]
    return {
        "schema": schema,
        "kind": "weights",
        "reference": _checkpoint(comparison.reference),
        "candidate": _checkpoint(comparison.candidate),
        "alignment": {
            "pairs": len(comparison.pairing.pairs),
            "coverage": round(outcome.coverage, 4),
            "order": "unknown",
            "orphans": {
                "reference": [item.name for item in comparison.pairing.missing],
                "candidate": [item.name for item in comparison.pairing.unexpected],
            },
            "left_out": list(outcome.unread),
            "learned": [rule.__dict__ for rule in comparison.pairing.learned],
        },
        "pairs": [parameter_json(k, row) for k, row in enumerate(outcome.rows) if row.by is not None],
        "findings": [parameter_json(k, row) for k, row in enumerate(outcome.rows) if row.is_finding],
        "groups": [
            {"name": name, "parameters": [row.name for row in rows], "verdict": rows[0].verdict,
             "hint": rows[0].hint and rows[0].hint.kind, "sentence": sentence}
            for name, rows, sentence in outcome.groups()
        ],
        "culprit": None,
        "counts": dict(outcome.counts),
        "notes": list(outcome.notes),
        "doubts": list(outcome.doubts),
        "verdict": outcome.verdict,
        "summary": {"mse": statistics_of(measured)},
    }  # fmt: skip


def parameter_json(index: int, row: ParameterRow) -> dict[str, Any]:
    """One parameter as an object."""
    return {
        "index": index, "name": row.name, "reference": row.reference, "candidate": row.candidate, "by": row.by,
        "views": list(row.views), "dtype": list(row.dtypes), "shape": list(row.shape),
        "diff": row.diff and row.diff.as_json(), "hint": row.hint and row.hint._asdict(),
        "verdict": row.verdict, "why": row.why,
    }  # fmt: skip


def _checkpoint(dump: Dump) -> dict[str, Any]:
    return _dump(dump) | {"entries": len(dump.parameters) or len(dump)}
