"""``tensordiff.compare``: compare two runs and return a ``Result``."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Unpack

from tensordiff.align.rules.rule import Side
from tensordiff.capture.job import Job
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure import kernel
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.errors import printable
from tensordiff.library.result import Result
from tensordiff.library.run_options import PathLike, RunOptions, run_settings
from tensordiff.library.runs import ProgressCallback, run_into
from tensordiff.session.from_arrays import Arrays, SessionOptions, session_of
from tensordiff.session.session import Session
from tensordiff.session.weights import refuse_checkpoints

__all__ = ["ComparisonOptions", "compare", "open_sides"]


class ComparisonOptions(RunOptions, total=False):
    """The keyword arguments of ``compare``, which ``assert_agrees`` takes as well."""

    rules: PathLike | None
    tolerances: PathLike | None
    golden: PathLike | Arrays | None
    injected: PathLike | Arrays | None
    atol: float | None
    rtol: float | None
    threshold: float | None
    step: int | None
    only: str | None
    min_coverage: float
    allow_partial: bool
    learn: bool
    keep: PathLike | None


def compare(
    reference: PathLike | Arrays,
    candidate: PathLike | Arrays,
    *,
    rules: PathLike | None = None,
    tolerances: PathLike | None = None,
    golden: PathLike | Arrays | None = None,
    injected: PathLike | Arrays | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    threshold: float | None = None,
    step: int | None = None,
    only: str | None = None,
    min_coverage: float = 50.0,
    allow_partial: bool = False,
    learn: bool = True,
    keep: PathLike | None = None,
    progress: ProgressCallback | None = None,
    **options: Unpack[RunOptions],
) -> Result:
    """Pair the tensors of two runs, measure every pair, and name the first layer that is wrong.

    Each side is a dump (a path), a source (``"hf:PATH_OR_ID"``, which runs in a process of its own), or arrays by name
    in the order in which they were computed: numpy arrays, torch tensors, or anything that numpy can convert.

    >>> import numpy as np, tensordiff
    >>> x = np.linspace(-1, 1, 64, dtype=np.float32)
    >>> ours = {"mlp": x, "act": np.tanh(x), "head": 3 * np.tanh(x)}
    >>> theirs = {"mlp": x, "act": 1.1 * np.tanh(x), "head": 3.3 * np.tanh(x)}
    >>> result = tensordiff.compare(ours, theirs)
    >>> result.verdict, result.culprit.name, round(result.culprit.rel_l2, 3)
    ('diverges', 'act', 0.1)
    >>> print(result.hint.kind, result.hint.sentence.partition(";")[0], sep=": ")
    scale: the reference times 1.1
    >>> [row.verdict for row in result.rows]
    ['agrees', 'diverges', 'drifts']

    The options are those of the command line. ``rules`` and ``tolerances`` are TOML files; ``golden`` is a run in
    higher precision; ``injected`` is the candidate run with the reference's inputs (see ``inject``); ``atol``, ``rtol``
    and ``threshold`` (of ``rel_l2``) replace the automatic tolerance; ``only`` is a regular expression for names.
    ``options`` such as ``prompt`` or ``dtype`` apply to sources; ``keep`` is the folder for their dumps, and
    ``progress`` receives one line at a time while they run.
    """
    session = open_sides(
        "compare", reference, candidate, rules=rules, tolerances=tolerances, golden=golden, injected=injected,
        limits=Limits(Tolerance.of(atol, rtol), threshold), step=step, only=only, min_coverage=min_coverage,
        allow_partial=allow_partial, learn=learn, keep=keep, progress=progress, options=options,
    )  # fmt: skip
    arrays = tuple(side if isinstance(side, Mapping) else None for side in (reference, candidate))
    return Result(session, session.outcome(session.rows()), (arrays[0], arrays[1]))


def open_sides(
    function: str,
    reference: PathLike | Arrays,
    candidate: PathLike | Arrays,
    *,
    progress: ProgressCallback | None = None,
    options: RunOptions | None = None,
    reruns: bool = False,
    **asked: Unpack[SessionOptions],
) -> Session:
    """Open the session of two sides for the functions of this library; sources are run first.

    ``reruns`` is passed to ``refuse_unused_options``.
    """
    _warn_if_slow()
    settings = run_settings(
        function, options or {}, others=("atol", "rtol", "threshold", *SessionOptions.__annotations__)
    )
    run, note = _Runner(progress).run, progress or _warn
    session = session_of(reference, candidate, settings=settings, run=run, note=note, reruns=reruns, **asked)
    refuse_checkpoints(session.reference, session.candidate)
    return session


class _Runner:
    """Runs sources and reports their progress."""

    def __init__(self, tell: ProgressCallback | None) -> None:
        self._tell = tell

    def run(self, job: Job, side: Side) -> Path:
        tell = self._tell
        line = None if tell is None else lambda text: tell(printable(f"{side}: {text}"))
        return run_into(job, line).path


@cache  # once per process, whichever function calls it
def _warn_if_slow() -> None:
    """Warn, at the caller's own line, that this install measures in numpy, and why.

    The pytest plugin keeps this a warning even if the user turns warnings into errors: a slow install must not fail a
    test.
    """
    if notice := kernel.slow_notice():
        warnings.warn(notice, RuntimeWarning, stacklevel=_levels_to_caller())


def _warn(sentence: str) -> None:
    """Warn at the caller's own line."""
    warnings.warn(sentence, UserWarning, stacklevel=_levels_to_caller())


def _levels_to_caller() -> int:
    """The ``stacklevel`` of the first frame outside tensordiff, as seen from the function that calls this."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "tensordiff":
        level, frame = level + 1, frame.f_back
    return level + 1
