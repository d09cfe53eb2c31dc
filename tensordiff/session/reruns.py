"""Running the sides of a session again: with injected inputs, with other settings, or for the operations of a layer.

A side can be run where its dump says which source made it, and how. Nothing waits here: every method starts a ``Run``,
and whoever asked for it follows its events. What such a run is compared with is ``Request.with_candidate`` and
``Request.of_operations``.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tensordiff.align.rules.file import RulesFile, rules_text
from tensordiff.align.rules.rule import Side
from tensordiff.capture.child import ReusableChild
from tensordiff.capture.engines import prefixes
from tensordiff.capture.job import Job
from tensordiff.capture.provenance import Provenance, provenance_of
from tensordiff.capture.runner import Run
from tensordiff.capture.settings import Injection, Settings
from tensordiff.dump import Dump
from tensordiff.errors import CaptureError, printable
from tensordiff.session.session import Session

Action = Literal["inject", "capture", "ops"]
_PREFIX = "tensordiff-rerun-"


def injection(session: Session, at: str, rules: RulesFile | None = None) -> Injection:
    """The reference's inputs for a run of the candidate; ``at`` is as in ``--inject-at``.

    Layers are paired by the rules in force, or by ``rules`` where the session is not aligned by those yet.
    """
    file = session.request.rules
    return Injection(
        str(session.reference.path.absolute()),
        at,
        None if file is None else str(file.expanduser().absolute()),
        rules_text(session.rules if rules is None else rules),
    )


def required_provenance(dump: Dump, side: Side) -> Provenance:
    """What made a dump; raises ``CaptureError`` where it does not say, and so cannot be run again."""
    if (provenance := provenance_of(dump)) is None:
        raise CaptureError(_unknown_source(dump, side))
    return provenance


def _unknown_source(dump: Dump, side: Side) -> str:
    return (
        f"the {side} {printable(dump.path)} does not say which source made it, so it cannot be run again; capture it "
        f"with tensordiff capture, or give {prefixes()} instead of the dump"
    )


def is_rerun(path: Path) -> bool:
    """Whether a dump was made by a rerun, and not given by the user."""
    return any(part.startswith(_PREFIX) for part in path.parts)


@dataclass(frozen=True)
class Rerunner:
    """Runs the sides of a session again."""

    session: Session
    folder: Path | None = None
    """Where runs put their dumps, one folder a run; None for temporary ones."""
    child: ReusableChild | None = None
    """Keeps the process of one run for the next; whoever gives it closes it."""

    def provenance(self, side: Side) -> Provenance | None:
        """What made a side's dump, where that is known."""
        return provenance_of(self._dump(side))

    def why_not(self, action: Action, side: Side = "candidate") -> str | None:
        """Why a side cannot be run now, as a sentence; None where it can."""
        if self.provenance(side) is None:
            return _unknown_source(self._dump(side), side)
        if action == "inject" and not any(entry.is_input for entry in self.session.reference.entries):
            return f"the reference {printable(self.session.reference.path)} has no inputs that could be injected"
        return None

    def inject(self, at: str = "all", rules: RulesFile | None = None) -> Run:
        """Run the candidate with the reference's inputs; arguments as of ``injection``."""
        settings = self._settings("candidate")
        return self._run("candidate", replace(settings, inject=injection(self.session, at, rules)), "injected")

    def capture(self, side: Side = "candidate", settings: Settings | None = None) -> Run:
        """Run a side as it was run, or with other settings."""
        return self._run(side, settings or self._settings(side), "captured")

    def operations(self, layer: str, side: Side = "candidate") -> Run:
        """Run a side, and write every operation within one of its layers."""
        return self._run(side, replace(self._settings(side), ops=layer, inject=None), "ops")

    def _dump(self, side: Side) -> Dump:
        return self.session.reference if side == "reference" else self.session.candidate

    def _settings(self, side: Side) -> Settings:
        return required_provenance(self._dump(side), side).settings

    def _run(self, side: Side, settings: Settings, purpose: str) -> Run:
        source = required_provenance(self._dump(side), side).source
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{side}-{purpose}-", dir=self.folder))
        return Run(Job(source, settings, str(folder / "dump")), self.child)
