"""What was measured of a pair, before it is judged."""

from __future__ import annotations

from typing import NamedTuple

from tensordiff.align.match import Pair
from tensordiff.align.views import Views
from tensordiff.compare.judge.masks import diff_of_visible
from tensordiff.compare.judge.verdict import GoldenErrors
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.diff import Diff


class Measurement(NamedTuple):
    """What was measured of a pair, before it is judged."""

    pair: Pair
    dtypes: tuple[str, str]
    views: Views
    diff: Diff
    injected: Diff | None
    golden: GoldenErrors | None
    limits: Limits
    """The limits of this pair."""
    kl_div: float | None
    """Measured only where it has a limit."""


def is_golden_judged(measured: Measurement) -> bool:
    """Whether a golden run decides on a pair."""
    return measured.golden is not None and measured.golden.is_trusted(measured.dtypes)


def of_visible(measured: Measurement) -> Measurement:
    """Masked scores without what both sides hide."""
    visible = None if measured.limits.are_set else diff_of_visible(measured.pair, measured.diff)
    return measured if visible is None else measured._replace(diff=visible)
