"""The style of each verdict. Not in ``text``, which the first frame needs before anything that compares is loaded."""

from __future__ import annotations

from tensordiff.report.labels import COLOURS

VERDICT_STYLES = {**COLOURS, "diverges": f"bold {COLOURS['diverges']}"}
