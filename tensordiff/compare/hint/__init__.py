"""What kind of error a pair shows: a lost residual, swapped heads, a missing scale.

``catalogue`` lists every kind that is recognized; ``row_hint`` asks it about a row of a comparison.
"""

from __future__ import annotations

from typing import NamedTuple

Evidence = dict[str, float | int | str | list[int] | list[float]]


class Hint(NamedTuple):
    """A kind of error, and why it is thought to be that."""

    kind: str
    sentence: str
    evidence: Evidence


def explained(left: float) -> str:
    """How much of the error a hint accounts for, for a sentence; ``left`` is the share that it does not."""
    return f"this explains all but {left:.0e} of the error" if left else "this explains all of the error"
