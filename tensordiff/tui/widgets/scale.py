"""A scale for errors: from decades, or from nothing, to a share of the height, and the labels beside it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tensordiff.compare.blocks import Floats

_MOST_DECADES = 16


class Scale(NamedTuple):
    """From ``low`` to ``high``: of log10 of the error, or of the error itself."""

    low: float
    high: float
    is_log: bool = True

    def share(self, error: float) -> float:
        """How far up an error stands: 0 at the foot or below, 1 at the top."""
        if not error > 0:
            return 0.0
        value = math.log10(error) if self.is_log else error
        return max(0.0, min(1.0, (value - self.low) / (self.high - self.low)))

    def shares(self, errors: Floats) -> Floats:
        """The same of many, which are finite."""
        with np.errstate(divide="ignore"):
            values = np.log10(errors) if self.is_log else errors
        return np.clip((values - self.low) / (self.high - self.low), 0.0, 1.0)

    def label(self, row: int, rows: int) -> str:
        """What stands beside one of ``rows`` rows, counted from below; nothing beside most of them."""
        marks = self._marks(rows)
        for mark in marks:
            share = (mark - self.low) / (self.high - self.low)
            if min(rows - 1, int(share * rows)) == row:
                return f"1e{mark:+03.0f}" if self.is_log else f"{mark:.1e}"
        return ""

    def _marks(self, rows: int) -> list[float]:
        """Values to label, from above: decades, no closer than two rows."""
        if not self.is_log:
            count = max(1, min(4, rows // 2))
            return [self.high * k / count for k in range(count, -1, -1)]
        decades = round(self.high - self.low)
        step = max(1, math.ceil(2 * decades / max(1, rows)))
        return [self.high - k for k in range(0, decades + 1, step)]


def scale_of(errors: Floats, is_log: bool = True) -> Scale:
    """A scale that holds all finite errors, in whole decades."""
    positive = errors[np.isfinite(errors) & (errors > 0)]
    if not positive.size:
        return Scale(-8.0, 0.0) if is_log else Scale(0.0, 1.0, False)
    if not is_log:
        return Scale(0.0, float(positive.max()), False)
    low, high = math.floor(math.log10(positive.min())), math.ceil(math.log10(positive.max()))
    high = max(high, low + 1)
    return Scale(float(max(low, high - _MOST_DECADES)), float(high))
