"""The JSON of ``tensordiff weights``, under the names of ``compare --json`` where they fit (docs/weights.md)."""

from __future__ import annotations

from typing import Any

from tensordiff.dump.model import Dump
from tensordiff.report.comparison_json import statistics_of
from tensordiff.weights.comparison import ParameterRow, WeightsComparison, WeightsOutcome

SCHEMA = "tensordiff.weights/1"


def weights_json(comparison: WeightsComparison, outcome: WeightsOutcome, schema: str = SCHEMA) -> dict[str, Any]:
    """The whole comparison as one object."""
    measured = [row.diff.mse for row in outcome.rows if row.diff is not None]
    return {
        "schema": schema,
        "kind": "weights",
        "reference": _dump(comparison.reference),
        "candidate": _dump(comparison.candidate),
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
        "pairs": [row_json(k, row) for k, row in enumerate(outcome.rows) if row.by is not None],
        "findings": [row_json(k, row) for k, row in enumerate(outcome.rows) if row.is_finding],
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


def row_json(index: int, row: ParameterRow) -> dict[str, Any]:
    """One parameter as an object."""
    return {
        "index": index, "name": row.name, "reference": row.reference, "candidate": row.candidate, "by": row.by,
        "views": list(row.views), "dtype": list(row.dtypes), "shape": list(row.shape),
        "diff": row.diff and row.diff.as_json(), "hint": row.hint and row.hint._asdict(),
        "verdict": row.verdict, "why": row.why,
    }  # fmt: skip


def _dump(dump: Dump) -> dict[str, Any]:
    return {
        "path": str(dump.path),
        "format": dump.format,
        "entries": len(dump.parameters) or len(dump),
        "source": dump.facts.get("source"),
    }
