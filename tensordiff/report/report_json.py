"""The report as JSON: what ``compare --json`` prints, with what a report adds under ``report``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tensordiff.report.compared import Compared
from tensordiff.report.json import compare_json, strict
from tensordiff.report.model import Story
from tensordiff.report.row_detail import Close


def report_json(session: Compared, story: Story) -> dict[str, Any]:
    """One object; ``pairs`` are those that are shown, ``culprit`` and ``verdict`` of the whole."""
    culprit = next((close for close in story.closes if close.row is story.outcome.culprit), None)
    hint = culprit.hint if culprit else None
    dumped = session.reference, session.candidate
    whole = compare_json(*dumped, session.alignment, story.outcome, story.findings, story.logits, hint)
    shown = {row.pair.index for row in story.rows}
    whole["pairs"] = [pair for pair in whole["pairs"] if pair["index"] in shown]
    if culprit is not None:
        whole["culprit"]["worst"] = [asdict(item) for item in culprit.worst]
    return whole | {"report": _report(story)}


def _report(story: Story) -> dict[str, Any]:
    stamp = {"stamp": story.stamp} if story.stamp else {}
    return stamp | {
        "title": story.title,
        "sentence": story.sentence,
        "shown": len(story.rows),
        "order_differences": [part._asdict() for part in story.order.differences],
        "orphans": [orphan._asdict() for orphan in story.orphans],
        "victims": [row.pair.index for row in story.victims],
        "close": [close_json(close) for close in story.closes],
        "settings": dict(story.settings),
        "facts": [fact._asdict() for fact in story.facts],
    }


def close_json(close: Close) -> dict[str, Any]:
    """One row, closely."""
    row = close.row
    found: dict[str, Any] = strict(
        {
            "index": row.pair.index,
            "hint": close.hint and close.hint._asdict(),
            "worst": [asdict(item) for item in close.worst],
            "profile": list(row.diff.profile) if row.diff else [],
            "inputs": [{"index": given.pair.index, "verdict": given.verdict.name} for given in close.inputs],
            "repro": close.repro or None,
            "origin": dict(zip(("reference", "candidate"), close.origins, strict=True)),
        }
    )
    return found
