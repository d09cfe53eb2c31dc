"""What two dumps come to, whether they are runs or checkpoints."""

from __future__ import annotations

from pathlib import Path

from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.weights.comparison import compare_weights


def verdict_of(reference: Path, candidate: Path) -> tuple[str, int]:
    """The verdict and the exit status, as ``tensordiff compare`` gives them."""
    session = Session.open(Request(reference, candidate))
    if session.are_checkpoints:
        weights = compare_weights(session.reference, session.candidate)
        return weights.verdict, weights.exit_status
    found = session.outcome(session.rows())
    return found.verdict, found.exit_status
