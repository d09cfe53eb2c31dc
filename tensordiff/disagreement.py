"""The error of a failing ``assert_agrees``, and the way a test runner says where its report goes.

This imports nothing heavy: pytest loads it in every run, whether a test compares tensors or not.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensordiff.library.result import Result

report_path: ContextVar[Callable[[], Path] | None] = ContextVar("report_path", default=None)
"""Called for a path when an assertion fails that was given none; where this is None, no report is written."""


class Disagreement(AssertionError):
    """Two runs do not agree, or it cannot be told whether they do; ``result`` has all that was measured."""

    def __init__(self, sentence: str, detail: str, report: Path | None, result: Result | None = None) -> None:
        kept = f"\nreport: {report}" if report else '\nno report was kept; give one with report="FILE.html"'
        super().__init__(f"{sentence}{detail}{kept}")
        self.sentence, self.report, self.result = sentence, report, result
