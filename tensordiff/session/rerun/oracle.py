"""An oracle that answers each probe of a search by running the candidate again.

For each probe the candidate runs with the layers that end before the probed one replaced by the reference's outputs,
and with the reference's inputs for the probed layer; the rest runs unchanged. If the model's output is then right, the
fault lies before the layer. If it is not, the layer's own output tells whether the fault lies in the layer or after it.

A rerun repairs a layer in all steps at once, so it cannot distinguish steps. The search covers the first step whose
model output is wrong; all steps before it are right.

A quantized candidate drifts by as much as its rounding to 8 bits adds up to. For such a candidate only a divergence
counts as wrong, and an answer is believed only if the layer itself diverges on right inputs, or if the user set a
limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tensordiff.align import Pair
from tensordiff.capture.child import ReusableChild
from tensordiff.capture.events import Done
from tensordiff.capture.job import Job
from tensordiff.capture.runner import Run
from tensordiff.compare.comparer import Comparer
from tensordiff.errors import CaptureError, printable
from tensordiff.search.bisect import Bisect, Mark
from tensordiff.search.oracle import EIGHT_BIT_DOUBT, VerdictOracle
from tensordiff.session.rerun.reruns import injection, offer_of
from tensordiff.session.rerun.trust import RerunOffer, Trust, refuse_untrusted
from tensordiff.session.session import Session
from tensordiff.util.temporary_folders import temporary_folder

FollowRun = Callable[[Run], Done]


@dataclass(frozen=True)
class RerunOracle:
    """Judges an output by a rerun in which everything before it is right."""

    session: Session
    offer: RerunOffer
    """What is run: the source that made the candidate, if it may be run."""
    model: str
    """The candidate's layer that is the whole model."""
    step: int
    """The searched step: the first whose model output is wrong."""
    follow: FollowRun
    """Runs a job to its end and shows its progress."""
    child: ReusableChild | None = None
    """Keeps the process of one probe for the next; the caller closes it."""
    repaired: set[int] = field(default_factory=set)
    """Pairs, by index, whose rerun gave a right model output, so that the fault lies before them."""

    @classmethod
    def over(cls, session: Session, follow: FollowRun, trust: Trust | None = None) -> RerunOracle:
        """An oracle for a session whose candidate can be run again; raises if reruns are not allowed or would tell
        nothing."""
        try:
            offer = offer_of(session, "candidate")
        except CaptureError as error:
            raise CaptureError(f"{error}; or judge with --auto") from error
        layers = (pair.candidate.layer for pair in session.pairs if not pair.reference.is_input)
        model = min(layers, key=len, default="")  # the module that contains all others has the shortest name
        outputs = _outputs(session.pairs, model)
        steps = sorted({pair.reference.step for pair in outputs})
        of_step = ((step, [pair for pair in outputs if pair.reference.step == step]) for step in steps)
        wrong = next((step for step, pairs in of_step if _is_wrong(session.comparer, pairs)), None)
        if wrong is not None and VerdictOracle.over(session.comparer, session.pairs).unproven:
            raise CaptureError(f"no layer is worse than what came into it: {EIGHT_BIT_DOUBT}")
        if wrong is None:
            raise CaptureError("the model's own output agrees already, so no rerun can tell more; see compare")
        refuse_untrusted(offer, trust or Trust())
        return cls(session, offer, model, wrong, follow)

    def verdicts(self) -> VerdictOracle:
        """The outputs that can be probed, with their verdicts. A cache is judged through the layers that fill it."""
        pairs = [pair for pair in self.session.pairs if pair.reference.step == self.step and not _is_cache(pair)]
        return VerdictOracle.over(self.session.comparer, pairs)

    def ask(self, bisect: Bisect) -> Mark | None:
        """Judge the probe."""
        if bisect.probe is None:
            return None
        number = bisect.points[bisect.probe].number
        return self.mark(next(pair for pair in self.session.pairs if pair.index == number))

    def explanation(self, bisect: Bisect) -> str:
        """For a finished search: a sentence if the fault lies just before the layer rather than in it."""
        at = bisect.first_bad
        if at is None or bisect.points[at].number not in self.repaired or self.doubt_about(bisect):
            return ""
        here = printable(bisect.points[at].name)
        since = f" after {printable(bisect.points[at - 1].name)}" if at else ""
        return f"given right inputs, {here} is right and so is all that follows: the fault lies before it{since}"

    def doubt_about(self, bisect: Bisect) -> str:
        """For a finished search: why its answer is not believed, or empty."""
        comparer, at = self.session.comparer, bisect.first_bad
        is_rounded = bool(comparer.in_eight_bits) and not comparer.limits.are_set
        return EIGHT_BIT_DOUBT if is_rounded and at is not None and bisect.points[at].number in self.repaired else ""

    def mark(self, pair: Pair) -> Mark:
        """Run the candidate with everything before a layer repaired, and judge the result."""
        layer = pair.candidate.layer
        with temporary_folder() as folder:
            self.follow(Run(self._job(layer, folder / "dump"), self.child))
            rerun = self.session.with_candidate(folder / "dump")
            if not _is_wrong(rerun.comparer, self._in_step(_outputs(rerun.pairs, self.model))):
                self.repaired.add(pair.index)
                return "bad"
            own = [p for p in self._in_step(_outputs(rerun.pairs, layer)) if p.reference.port == pair.reference.port]
            return ("bad" if _is_wrong(rerun.comparer, own) else "good") if own else "skip"

    def _in_step(self, pairs: Iterable[Pair]) -> list[Pair]:
        return [pair for pair in pairs if pair.reference.step == self.step]

    def _job(self, layer: str, folder: Path) -> Job:
        wanted = "|".join(re.escape(name) for name in (layer, self.model))
        inject = injection(self.session, f"..{layer}")
        settings = replace(
            self.offer.settings, inject=inject, layers=f"^({wanted})$", no_inputs=True, ops=None, gradients=False
        )
        return Job(self.offer.source, settings, str(folder))


def _outputs(pairs: Iterable[Pair], layer: str) -> list[Pair]:
    return [p for p in pairs if p.candidate.layer == layer and not p.reference.is_input and not _is_cache(p)]


def _is_cache(pair: Pair) -> bool:
    return "past_key_values" in pair.reference.port or "past_key_values" in pair.candidate.port


def _is_wrong(comparer: Comparer, pairs: Sequence[Pair]) -> bool:
    """Whether any of these pairs, each judged by itself, is further off than rounding."""
    right = ("agrees", "drifts") if comparer.in_eight_bits else ("agrees",)
    return any(row.verdict.name not in right for row in comparer.alone().rows(pairs))
