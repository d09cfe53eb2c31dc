"""The report as CSV, one line per pair. A name that a spreadsheet would read as a formula gets an apostrophe."""

from __future__ import annotations

import csv
import io

from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.row import Row
from tensordiff.errors import printable
from tensordiff.report.labels import component
from tensordiff.report.model import ReportModel

_DIFF = ("mse", "rms", "rel_l2", "max_abs", "max_rel", "mean_abs", "cosine_distance", "outside", "elements", "apart")
HEADINGS = (
    "index", "name", "port", "step", "call", "component", "verdict", "is_culprit", "why", "shape",
    "reference_dtype", "candidate_dtype", *_DIFF, "injected_mse", "injected_rel_l2", "golden_ratio",
    "by", "views", "reference", "candidate",
)  # fmt: skip
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def render(model: ReportModel) -> str:
    """The shown rows as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADINGS)
    writer.writerows(_line(row, model) for row in model.rows)
    return out.getvalue()


def _line(row: Row, model: ReportModel) -> list[object]:
    pair, entry = row.pair, row.pair.reference
    dtypes = row.dtypes or ("", "")
    shape = "" if row.shape is None else "x".join(map(str, row.shape)) or "scalar"
    return [
        pair.index, safe(pair.name), safe(entry.port), entry.step, entry.call, component(pair.name), row.verdict.name,
        int(row is model.outcome.culprit), safe(row.verdict.why), shape, *dtypes, *_numbers(row.diff, _DIFF),
        *_numbers(row.injected, ("mse", "rel_l2")), "" if row.golden_ratio is None else repr(row.golden_ratio),
        pair.by, safe("; ".join(row.views)), safe(entry.name), safe(pair.candidate.name),
    ]  # fmt: skip


def _numbers(diff: Diff | None, fields: tuple[str, ...]) -> list[str]:
    return [""] * len(fields) if diff is None else [repr(getattr(diff, field)) for field in fields]


def safe(text: str) -> str:
    """Untrusted text as a cell: one line, and never a formula."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown
