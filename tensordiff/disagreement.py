"""The error that a failing ``assert_agrees`` raises, and how a test runner tells it where to write a report.

pytest loads this module in every run, even if no test compares tensors, so it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensordiff.library.result import Result

report_path: ContextVar[Callable[[], Path] | None] = ContextVar("report_path", default=None)
"""Called to get a path when an assertion fails without a ``report`` argument; None means that no report is written."""


class Disagreement(AssertionError):
    """Two runs disagree, or it could not be decided whether they agree; ``result`` holds everything that was
    measured."""

    def __init__(self, sentence: str, detail: str, report: Path | None, result: Result | None = None) -> None:
        kept = f"\nreport: {report}" if report else '\nno report was kept; give one with report="FILE.html"'
        super().__init__(f"{sentence}{detail}{kept}")
        self.sentence, self.report, self.result = sentence, report, result
