"""Which points of a plot are named: those that stand out of their run, and not so many that none can be read."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

_MOST = 12
_DECADES = 2.0
"""How far above the middle of all a point must stand, at the least."""
_SPREADS = 4.0


class Point(NamedTuple):
    """One output."""

    place: int
    """In execution order."""
    mse: float
    label: str
    component: str


def outliers(points: Sequence[Point]) -> list[Point]:
    """The points that stand clear above the others, worst first."""
    edge = _edge([math.log10(point.mse) for point in points if 0 < point.mse < math.inf])
    high = [point for point in points if not point.mse < math.inf or (point.mse > 0 and math.log10(point.mse) > edge)]
    return sorted(high, key=_rank)[:_MOST]


def _edge(logs: Sequence[float]) -> float:
    if not logs:
        return math.inf
    middle = statistics.median(logs)
    spread = statistics.median(abs(log - middle) for log in logs)
    return middle + max(_DECADES, _SPREADS * spread)


def _rank(point: Point) -> tuple[bool, float, int]:
    return not math.isnan(point.mse), -point.mse if not math.isnan(point.mse) else 0.0, point.place
