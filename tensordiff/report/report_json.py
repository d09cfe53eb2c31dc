"""The report as JSON: the output of ``compare --json`` plus the report's own content under ``report``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tensordiff.report.comparison_json import compare_json, dumps, strict
from tensordiff.report.model import ReportModel
from tensordiff.report.row_detail import RowDetail


def render(model: ReportModel) -> str:
    """The text of the file."""
    return dumps(report_json(model)) + "\n"


def report_json(model: ReportModel) -> dict[str, Any]:
    """The report as one object; ``pairs`` are the shown ones, ``culprit`` and ``verdict`` those of the whole
    comparison."""
    culprit = next((detail for detail in model.details if detail.row is model.outcome.culprit), None)
    hint = culprit.hint if culprit else None
    whole = compare_json(model.session, model.outcome, model.findings, model.logits, hint)
    shown = {row.pair.index for row in model.rows}
    whole["pairs"] = [pair for pair in whole["pairs"] if pair["index"] in shown]
    if culprit is not None:
        whole["culprit"]["worst"] = [asdict(item) for item in culprit.worst]
    return whole | {"report": _report(model)}


def _report(model: ReportModel) -> dict[str, Any]:
    stamp = {"stamp": model.stamp} if model.stamp else {}
    return stamp | {
        "title": model.title,
        "sentence": model.sentence,
        "shown": len(model.rows),
        "order_differences": [part._asdict() for part in model.order.differences],
        "orphans": [orphan._asdict() for orphan in model.orphans],
        "victims": [row.pair.index for row in model.victims],
        "close": [detail_json(detail) for detail in model.details],
        "settings": dict(model.settings),
        "facts": [fact._asdict() for fact in model.facts],
    }


def detail_json(detail: RowDetail) -> dict[str, Any]:
    """One row in detail."""
    row = detail.row
    found: dict[str, Any] = strict(
        {
            "index": row.pair.index,
            "hint": detail.hint and detail.hint._asdict(),
            "worst": [asdict(item) for item in detail.worst],
            "profile": list(row.diff.profile) if row.diff else [],
            "inputs": [{"index": given.pair.index, "verdict": given.verdict.name} for given in detail.inputs],
            "repro": detail.repro or None,
            "origin": dict(zip(("reference", "candidate"), detail.origins, strict=True)),
        }
    )
    return found
