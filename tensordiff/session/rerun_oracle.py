"""A search judged by running the candidate again: is all well when everything up to here is made right?

For each probe the candidate runs once more. Whatever ended before the probed layer gives the reference's outputs, the
layer itself gets the reference's inputs, and the rest is left to run. Where the model's own output is right then, the
fault lies before the layer; where it is not, the layer's own output tells whether it lies here or further on.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tensordiff.align import Pair
from tensordiff.capture.child import ReusableChild
from tensordiff.capture.events import Done
from tensordiff.capture.job import Job
from tensordiff.capture.provenance import Provenance, provenance_of
from tensordiff.capture.runner import Run
from tensordiff.compare.row import Row
from tensordiff.errors import CaptureError, printable
from tensordiff.search.bisect import Bisect, Mark
from tensordiff.search.oracle import VerdictOracle
from tensordiff.session.reruns import injection
from tensordiff.session.session import Session

Follow = Callable[[Run], Done]


@dataclass(frozen=True)
class RerunOracle:
    """Judges a place by a rerun in which everything before it is right."""

    session: Session
    made: Provenance
    whole: str
    """The candidate's layer that is the model itself."""
    follow: Follow
    """Listens to a run until its end."""
    standby: ReusableChild | None = None
    """Keeps the process of one probe for the next; whoever gives it closes it."""
    healed: set[int] = field(default_factory=set)
    """Numbers of the places before which the fault lies: with them made right, the model's output was right."""

    @classmethod
    def over(cls, session: Session, follow: Follow) -> RerunOracle:
        """For a session whose candidate can be run again; refuses where that would tell nothing."""
        made = provenance_of(session.candidate)
        if made is None:
            raise CaptureError(
                f"{printable(session.candidate.path)}: does not say which source made it, so it cannot be run again; "
                "give a source (hf:, py:, max:, onnx:) or a dump that tensordiff capture made; or judge with --auto"
            )
        whole = _whole(pair.candidate.layer for pair in session.pairs if not pair.reference.is_input)
        if not _is_wrong(session.engine.rows(_outputs(session.pairs, whole))):
            raise CaptureError("what the whole model gives agrees already: no rerun can tell more; see compare")
        return cls(session, made, whole, follow)

    def places(self) -> VerdictOracle:
        """The outputs that can be probed; what a cache holds is judged by the layers that fill it."""
        return VerdictOracle.over(self.session.engine, [pair for pair in self.session.pairs if not _is_cache(pair)])

    def ask(self, bisect: Bisect) -> Mark | None:
        """Judge the probe."""
        if bisect.probe is None:
            return None
        number = bisect.points[bisect.probe].number
        return self.mark(next(pair for pair in self.session.pairs if pair.index == number))

    def told(self, bisect: Bisect) -> str:
        """Where the fault lies, once one suspect is left: in the layer itself, or in what happens just before it."""
        at = bisect.first_bad
        if at is None or bisect.points[at].number not in self.healed:
            return ""
        here = printable(bisect.points[at].name)
        since = f" after {printable(bisect.points[at - 1].name)}" if at else ""
        return f"given right inputs, {here} is right and so is all that follows: the fault lies before it{since}"

    def mark(self, pair: Pair) -> Mark:
        """Run the candidate with all before a layer made right, and see."""
        layer, folder = pair.candidate.layer, Path(tempfile.mkdtemp(prefix="tensordiff-"))
        try:
            self.follow(Run(self._job(layer, folder / "dump"), self.standby))
            seen = self.session.with_candidate(folder / "dump")
            if not _is_wrong(seen.engine.rows(_outputs(seen.pairs, self.whole))):
                self.healed.add(pair.index)
                return "bad"
            own = [p for p in _outputs(seen.pairs, layer) if p.reference.port == pair.reference.port]
            return ("bad" if _is_wrong(seen.engine.rows(own)) else "good") if own else "skip"
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _job(self, layer: str, folder: Path) -> Job:
        wanted = "|".join(re.escape(name) for name in (layer, self.whole))
        inject = injection(self.session, f"..{layer}")
        settings = replace(self.made.settings, inject=inject, layers=f"^({wanted})$", no_inputs=True, ops=None)
        return Job(self.made.source, settings, str(folder))


def _whole(layers: Iterable[str]) -> str:
    """The layer that holds all others: the one with the shortest name."""
    return min(layers, key=len, default="")


def _outputs(pairs: Iterable[Pair], layer: str) -> list[Pair]:
    found = [pair for pair in pairs if pair.candidate.layer == layer and not pair.reference.is_input]
    return [pair for pair in found if not _is_cache(pair)]


def _is_cache(pair: Pair) -> bool:
    return "past_key_values" in pair.reference.port or "past_key_values" in pair.candidate.port


def _is_wrong(rows: Iterable[Row]) -> bool:
    """Whether any of them is further off than rounding."""
    return any(row.verdict.name != "agrees" for row in rows)
