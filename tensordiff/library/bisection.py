"""``tensordiff.bisect``: binary search for the first bad layer, decided by verdicts, by reruns or by the caller."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Unpack

from tensordiff.capture.child import ReusableChild
from tensordiff.capture.events import Done
from tensordiff.capture.runner import Run
from tensordiff.compare.judge.verdict import VerdictName
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.errors import AlignError
from tensordiff.library.comparison import open_sides
from tensordiff.library.result import ResultRow
from tensordiff.library.run_options import PathLike, RunOptions
from tensordiff.library.runs import ProgressCallback
from tensordiff.search.bisect import Bisect, Mark
from tensordiff.search.bisect_outcome import BisectOutcome, check_neighbours, search_and_check
from tensordiff.search.oracle import VerdictOracle, search
from tensordiff.session.from_arrays import Arrays
from tensordiff.session.rerun.oracle import RerunOracle
from tensordiff.session.rerun.trust import Trust
from tensordiff.session.session import Session

Judge = Callable[[ResultRow], bool | None]
"""Returns whether a row is good, or None if that cannot be decided."""


@dataclass(frozen=True)
class BisectResult:
    """The result of a binary search."""

    session: Session
    outcome: BisectOutcome

    def __repr__(self) -> str:
        found = f"first bad: {self.first_bad.name}" if self.first_bad else f"{len(self.suspects)} suspects"
        return f"<{self.verdict}: {found}, {self.probes} probes>"

    @property
    def verdict(self) -> VerdictName:
        """The verdict of the search; ``agrees`` if nothing is bad."""
        return self.outcome.verdict

    @property
    def first_bad(self) -> ResultRow | None:
        """The first bad row; None if nothing is bad or several rows are still suspect."""
        row = self.outcome.first_bad
        return None if row is None else ResultRow(self.session, row)

    @property
    def why(self) -> str:
        """What is wrong with the first bad row."""
        return self.outcome.why_bad

    @property
    def suspects(self) -> tuple[str, ...]:
        """The names of the remaining suspects: one if the search succeeded, none if nothing is bad."""
        bisect = self.outcome.bisect
        return () if bisect.all_good else tuple(bisect.points[at].name for at in bisect.suspects)

    @property
    def probes(self) -> int:
        """How many rows were judged."""
        return len(self.outcome.bisect.marks)

    @property
    def is_monotone(self) -> bool | None:
        """Whether rows around the answer and some samples confirm it; None if none of them was checked."""
        return self.outcome.check.is_monotone if self.outcome.check else None


@dataclass(frozen=True)
class _CallerOracle:
    """Asks the caller's function."""

    session: Session
    oracle: VerdictOracle
    judge: Judge

    def ask(self, bisect: Bisect) -> Mark | None:
        if bisect.probe is None:
            return None
        is_good = self.judge(ResultRow(self.session, self.oracle.row(bisect.probe)))
        return "skip" if is_good is None else "good" if is_good else "bad"


def bisect(
    reference: PathLike | Arrays,
    candidate: PathLike | Arrays,
    judge: Judge | None = None,
    *,
    rerun: bool = False,
    trust_source: bool = False,
    rules: PathLike | None = None,
    tolerances: PathLike | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    threshold: float | None = None,
    step: int | None = None,
    only: str | None = None,
    learn: bool = True,
    keep: PathLike | None = None,
    progress: ProgressCallback | None = None,
    **options: Unpack[RunOptions],
) -> BisectResult:
    """Search for the first bad output as ``git bisect`` searches commits; only the rows that are probed are read.

    ``judge`` returns whether a row is good (None: cannot tell); without it the verdict decides. With ``rerun`` every
    probe runs the candidate with everything before a layer replaced by the reference's values. The search assumes that
    everything before the first bad row is good and everything after it bad; ``compare`` makes no such assumption.

    >>> import numpy as np, tensordiff
    >>> x = np.linspace(1, 2, 64, dtype=np.float32)
    >>> right = {f"layers.{k}": x + k for k in range(16)}
    >>> wrong = {f"layers.{k}": (x + k) * (1.5 if k >= 11 else 1) for k in range(16)}
    >>> found = tensordiff.bisect(right, wrong, lambda row: row.rel_l2 < 0.1)
    >>> found.first_bad.name, found.probes
    ('layers.11', 4)
    """
    if judge is not None and rerun:
        raise TypeError("bisect() takes a judge or rerun=True, not both")
    session = open_sides(
        "bisect", reference, candidate, rules=rules, tolerances=tolerances, step=step, only=only, learn=learn,
        limits=Limits(Tolerance.of(atol, rtol), threshold), keep=keep, progress=progress, options=options,
        reruns=rerun,
    )  # fmt: skip
    if not session.pairs:
        raise AlignError(f"{session.candidate.path} and {session.reference.path}: nothing was paired to search in")
    if rerun:
        return _by_reruns(session, Trust(any_source=trust_source))
    oracle = VerdictOracle.over(session.comparer, session.pairs)
    if judge is not None:
        state = _last(oracle.start(), search(oracle.start(), _CallerOracle(session, oracle, judge)))
        return BisectResult(session, BisectOutcome(state, oracle, None, session.doubts))
    state = _last(oracle.start(), search_and_check(oracle.start(), oracle))
    return BisectResult(session, BisectOutcome(state, oracle, check_neighbours(state, oracle), session.doubts))


def _by_reruns(session: Session, trust: Trust) -> BisectResult:
    judge = RerunOracle.over(session, _follow, trust)
    oracle = judge.verdicts()
    with ReusableChild() as child:
        state = _last(oracle.start(), search(oracle.start(), replace(judge, child=child)))
    return BisectResult(session, BisectOutcome(state, oracle, None, session.doubts, judge.doubt_about(state)))


def _follow(run: Run) -> Done:
    with run:
        return run.result()


def _last(first: Bisect, states: Iterator[Bisect]) -> Bisect:
    """The state in which a search ends."""
    return next(iter(deque(states, maxlen=1)), first)
