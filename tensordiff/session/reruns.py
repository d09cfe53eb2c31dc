"""What can be run again for a session: the app's ``i``, ``c`` and ``o``, without the app.

A side can be run where its source is known: from the request (``hf:…``) or from its dump's manifest, which says
what made it and how. Nothing is run here: every action gives a ``Run``, whose events the face shows.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from tensordiff.align.rules.rule import Side
from tensordiff.capture.child import ReusableChild
from tensordiff.capture.job import Job
from tensordiff.capture.provenance import Provenance, provenance_of
from tensordiff.capture.runner import Run
from tensordiff.capture.settings import Settings
from tensordiff.dump import Dump
from tensordiff.errors import CaptureError, printable
from tensordiff.session.session import Session

Action = Literal["inject", "capture", "ops"]
PREFIX = "tensordiff-live-"
"""How the folders of reruns are called."""


@dataclass(frozen=True)
class Live:
    """A session whose sides can be run again."""

    session: Session
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix=PREFIX)))
    """Where runs put their dumps, one folder a run."""
    standby: ReusableChild | None = None
    """Keeps the process of one run for the next; whoever gives it closes it."""

    def made(self, side: Side) -> Provenance | None:
        """How a side's dump was made, where that is known."""
        return provenance_of(self._dump(side))

    def why_not(self, action: Action, side: Side = "candidate") -> str | None:
        """Why something cannot be done now, as a sentence; None where it can."""
        dump = self._dump(side)
        if self.made(side) is None:
            return (
                f"the {side} {printable(dump.path)} does not say which source made it; capture it with "
                "tensordiff capture, or give hf:, max:, onnx: or py: instead of the dump"
            )
        if action == "inject" and not any(entry.is_input for entry in self.session.reference.entries):
            return f"the reference {printable(self.session.reference.path)} has no inputs that could be injected"
        return None

    def capture(self, side: Side = "candidate", settings: Settings | None = None) -> Run:
        """Run a side again, as it was run or with other settings."""
        made = self._made(side)
        return self._run(replace(made, settings=settings) if settings else made, f"{side}-captured")

    def inject(self, where: str = "all") -> Run:
        """Run the candidate with the reference's inputs; ``where`` as ``--inject-at`` takes it."""
        made = self._made("candidate")
        settings = replace(made.settings, inject=self.session.injection(where))
        return self._run(replace(made, settings=settings), "candidate-injected")

    def ops(self, layer: str, side: Side = "candidate") -> Run:
        """Run a side and write every operation within one of its layers."""
        made = self._made(side)
        return self._run(replace(made, settings=replace(made.settings, ops=layer, inject=None)), f"{side}-ops")

    def _dump(self, side: Side) -> Dump:
        return self.session.reference if side == "reference" else self.session.candidate

    def _made(self, side: Side) -> Provenance:
        if (why := self.why_not("capture", side)) is not None or (made := self.made(side)) is None:
            raise CaptureError(why or "this side cannot be run")
        return made

    def _run(self, made: Provenance, name: str) -> Run:
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))
        job = Job(made.source, replace(made.settings, force=made.settings.force), str(folder / "dump"))
        return Run(job, self.standby)
