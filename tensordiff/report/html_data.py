"""What the page's script gets: rows column by column, and the pictures; as JSON that cannot end its own element."""

from __future__ import annotations

import json
from typing import Any

from tensordiff.compare.engine import Row
from tensordiff.compare.sums import Diff
from tensordiff.errors import printable
from tensordiff.report.compare_json import strict
from tensordiff.report.component import component
from tensordiff.report.heat import Heat
from tensordiff.report.sparkline import sparkline
from tensordiff.report.story import Story
from tensordiff.report.words import label, shape_of

# As the script numbers them.
_VERDICTS = ("agrees", "drifts", "diverges", "unknown")
_COMPONENTS = ("attention", "mlp", "norm", "embedding", "head", "block", "other")
_BARS = 16


def embedded(value: Any) -> str:
    """JSON for an element of HTML: no ``<`` is left that a parser could take for a tag."""
    text = json.dumps(strict(value), allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def data_of(story: Story) -> dict[str, Any]:
    """All that the page draws by script."""
    culprit = next((k for k, row in enumerate(story.rows) if row is story.outcome.culprit), None)
    return {
        "rows": _columns(story),
        "culprit": culprit,
        "heats": [_heat(close.heat) for close in story.closes if close.heat is not None],
    }


def _columns(story: Story) -> dict[str, list[Any]]:
    rows = story.rows
    columns: dict[str, list[Any]] = {
        "index": [row.pair.index for row in rows],
        "name": [label(row.pair) for row in rows],
        "verdict": [_VERDICTS.index(row.verdict.name) for row in rows],
        "why": [printable(row.verdict.why) for row in rows],
        "shape": [shape_of(row.shape) for row in rows],
        "component": [_COMPONENTS.index(component(row.pair.name)) for row in rows],
        "input": [int(row.is_input and not _only_inputs(story)) for row in rows],
        "mse": [_number(row.diff, "mse") for row in rows],
        "rel_l2": [_number(row.diff, "rel_l2") for row in rows],
        "max_abs": [_number(row.diff, "max_abs") for row in rows],
        "profile": [sparkline(row.diff.profile, _BARS) if row.diff else "" for row in rows],
        "reference": [printable(row.pair.reference.name) for row in rows],
        "candidate": [printable(row.pair.candidate.name) for row in rows],
        "dtype": [_types(row) for row in rows],
        "by": [row.pair.by for row in rows],
        "views": [printable("; ".join(row.views)) for row in rows],
    }
    return columns | _injected(story) | _golden(story)


def _only_inputs(story: Story) -> bool:
    return story.outputs is story.rows


def _injected(story: Story) -> dict[str, list[Any]]:
    if not story.has_injected:
        return {}
    return {
        "injected": [_number(row.injected, "rel_l2") for row in story.rows],
        "injected_mse": [_number(row.injected, "mse") for row in story.rows],
    }


def _golden(story: Story) -> dict[str, list[Any]]:
    return {"golden": [short(row.golden_ratio) for row in story.rows]} if story.has_golden else {}


def _number(diff: Diff | None, field: str) -> float | None:
    return None if diff is None else short(getattr(diff, field))


def short(value: float | None) -> float | None:
    """Five digits: more are in the JSON and the CSV."""
    return None if value is None else float(f"{value:.4e}")


def _types(row: Row) -> str:
    return "" if row.dtypes is None else " against ".join(dict.fromkeys(row.dtypes))


def _heat(heat: Heat) -> dict[str, Any]:
    return {"cells": [[short(cell) for cell in line] for line in heat.cells]}
