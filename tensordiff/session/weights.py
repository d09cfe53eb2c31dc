"""Parameters in a comparison of runs: two checkpoints are no runs, and two captures may hold their weights."""

from __future__ import annotations

from tensordiff.capture.engines import ENGINES
from tensordiff.dump import Dump, open_dump
from tensordiff.session.request import Request
from tensordiff.weights.parameters import is_checkpoint


def open_checkpoints(request: Request) -> tuple[Dump, Dump] | None:
    """Both sides, where both are checkpoints and nothing was asked that only runs have; else None."""
    if request.golden or request.injected or request.session or request.step:
        return None
    if any(str(side).partition(":")[0] in ENGINES for side in (request.reference, request.candidate)):
        return None
    reference = open_dump(request.reference)
    if not is_checkpoint(reference):
        return None
    candidate = open_dump(request.candidate)
    return (reference, candidate) if is_checkpoint(candidate) else None
