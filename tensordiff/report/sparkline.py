"""A profile as one line of text, on one log scale for all, so that rows can be compared by eye."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

BARS = "▁▂▃▄▅▆▇█"
LOWEST, HIGHEST = -8.0, 0.0
"""log10 of the relative errors that the lowest and the highest bar stand for."""


def sparkline(profile: Sequence[float], width: int) -> str:
    """One character a stretch: ``·`` no error, bars by size, ``×`` NaN, ``∞`` infinite."""
    return "".join(_bar(value) for value in shrink(profile, width))


def shrink(profile: Sequence[float], width: int) -> list[float]:
    """The largest of each of at most ``width`` stretches; a NaN is larger than anything."""
    count = min(width, len(profile))
    cuts = [len(profile) * k // count for k in range(count + 1)] if count else [0]
    return [max(profile[a:b], key=_rank) for a, b in pairwise(cuts)]


def _rank(value: float) -> tuple[bool, float]:
    return math.isnan(value), value


def _bar(value: float) -> str:
    if math.isnan(value):
        return "×"
    if math.isinf(value):
        return "∞"
    if value <= 0:
        return "·"
    height = (math.log10(value) - LOWEST) / (HIGHEST - LOWEST)
    return BARS[max(0, min(len(BARS) - 1, int(height * len(BARS))))]
