"""Hints: what kind of error a pair shows, such as a lost residual, swapped heads or a missing scale.

``catalogue`` lists every kind that is recognized; ``row_hint`` applies it to a row of a comparison.
"""

from __future__ import annotations

from typing import NamedTuple

Evidence = dict[str, float | int | str | list[int] | list[float]]


class Hint(NamedTuple):
    """A kind of error, and the evidence for it."""

    kind: str
    sentence: str
    evidence: Evidence


def explained(left: float) -> str:
    """The clause of a hint that says how much of the error it accounts for; ``left`` is the share that it does not."""
    return f"this explains all but {left:.0e} of the error" if left else "this explains all of the error"
