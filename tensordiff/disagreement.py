"""Where the reports of checks that fail are kept, and how such a failure is told to whoever runs the checks.

Light on purpose: pytest loads this in every run, whether a test compares tensors or not.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path

place_for_report: ContextVar[Callable[[], Path] | None] = ContextVar("place_for_report", default=None)
"""Asked for a path when a check fails and was not told where its report goes; None keeps none."""


class Disagreement(AssertionError):
    """Two runs do not agree, or nobody can tell whether they do."""

    def __init__(self, sentence: str, detail: str, report: Path | None) -> None:
        kept = f"\nreport: {report}" if report else '\nno report was kept; give one with report="FILE.html"'
        super().__init__(f"{sentence}{detail}{kept}")
        self.sentence, self.report = sentence, report
