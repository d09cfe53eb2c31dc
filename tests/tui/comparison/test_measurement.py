"""What the thread that measures tells the screen at its end."""

from __future__ import annotations

import numpy as np

from tensordiff.tui.comparison.measurement import result_of
from tests.making import numbers
from tests.report.comparisons import compared


def test_what_the_values_make_doubtful_is_told_at_the_end() -> None:
    tensors = {"first": numbers(2, 6), "last": np.zeros((2, 6), "f4")}
    session, outcome = compared(tensors, tensors)
    [finding] = result_of(session, list(outcome.rows)).findings
    assert (finding.where, finding.what) == ("both sides: last", "1 output is all zero")
