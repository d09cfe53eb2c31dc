"""What a module gives is what a part of it gave, unchanged, on one side alone.

The other side does something to it before it is given on: a cap, a scale, a bias. In few bits that may be less than
what healthy layers reach, so that it drifts by its number. But where the part agrees on both sides, rounding does not
come into it: one side does something that the other does not.

A part that was given the reference's inputs shows nothing: its module did not, and made its own output of others.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tensordiff.align.index import parts_of
from tensordiff.align.match import Pair
from tensordiff.compare.judge.evidence import History, Measurement, is_golden_judged
from tensordiff.compare.judge.verdict import Verdict, floor_for
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.row import Row, values_of
from tensordiff.errors import printable

_LAST = 4  # parts that are looked at
_SAME = 1e-5  # how far norms of the same numbers may be apart, as they were summed
Reals = NDArray[np.float64]


def passed_on(history: History, row: Row, measured: Measurement) -> Verdict | None:
    """The verdict on an output that one side takes from a part as it is, and the other does not."""
    if row.is_input or row.is_exact or measured.diff.apart or is_golden_judged(measured):
        return None
    parts = [part for part in history.upstream.parts_of(row.pair) if not (part.is_input or _is_injected(part.pair))]
    for part in parts[: -_LAST - 1 : -1]:
        if part.verdict.name == "agrees" and part.shape == row.shape and (told := _told(row, part, measured)):
            return Verdict("diverges", f"rel_l2 {measured.diff.rel_l2:.1e}: {told}")
    return None


def _is_injected(pair: Pair) -> bool:
    """Whether the candidate's layer was given the reference's inputs."""
    return any(part.origin is not None and part.origin.injected for part in parts_of(pair.candidate))


def _told(row: Row, part: Row, measured: Measurement) -> str | None:
    """Which side passes a part's output on; None where both do, or neither."""
    if row.diff is None or part.diff is None or not _may_be_passed_on(row.diff, part.diff):
        return None  # most are told by numbers that were measured
    given, made = values_of(row.pair), values_of(part.pair)
    if given is None or made is None:
        return None
    wide = [(side.astype(np.float64), other.astype(np.float64)) for side, other in zip(given, made, strict=True)]
    are_same = [bool(np.array_equal(side, other)) for side, other in wide]
    if are_same[0] == are_same[1]:
        return None
    if not _distance(*wide[are_same.index(False)]) > floor_for(*measured.dtypes)[1].agrees:
        return None
    names = ("the reference's", "the candidate's")
    name = printable(part.pair.reference.layer.removeprefix(f"{row.pair.reference.layer}."))
    return f"{names[are_same.index(True)]} is what {name} gives, unchanged, and {names[are_same.index(False)]} is not"


def _may_be_passed_on(whole: Diff, part: Diff) -> bool:
    """Whether norms allow that just one side is the same in both."""
    pairs = [
        (whole.ref_rms, part.ref_rms),
        (_rms_of_candidate(whole), _rms_of_candidate(part)),
    ]
    return any(math.isclose(one, other, rel_tol=_SAME) for one, other in pairs)


def _rms_of_candidate(diff: Diff) -> float:
    """That of ref + d, whose products were measured."""
    return math.sqrt(max(0.0, diff.ref_rms**2 * (2 * diff.scale - 1) + diff.mse))


def _distance(side: Reals, other: Reals) -> float:
    size = float(np.linalg.norm(other))
    return float(np.linalg.norm(side - other)) / size if size > 0 else 0.0
