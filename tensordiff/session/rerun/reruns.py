"""Run a side of a session again: with injected inputs, with other settings, or for the operations of a layer.

A side can be run if its dump records which source made it and with which settings, and if the user agrees (``trust``).
Nothing here waits: every method starts a ``Run``, and the caller follows its events. ``Request.with_candidate`` and
``Request.of_operations`` tell what the new dump is compared with. Dumps go to the request's ``keep`` folder, or to a
temporary one that is deleted when the process ends.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from tensordiff.align.rules.file import RulesFile, rules_text
from tensordiff.align.rules.rule import Side
from tensordiff.capture.child import ReusableChild
from tensordiff.capture.engines import ENGINES
from tensordiff.capture.job import Job, refuse_settings
from tensordiff.capture.provenance import token_ids
from tensordiff.capture.runner import Run
from tensordiff.capture.settings import Injection, Settings
from tensordiff.errors import CaptureError, WriteError, printable
from tensordiff.session.request import Request
from tensordiff.session.rerun.trust import RerunOffer, Trust, refuse_untrusted, rerun_offer
from tensordiff.session.session import Session
from tensordiff.session.sources import have_same_input, with_decoded_tokens_of
from tensordiff.session.streaming.options import StreamOptions
from tensordiff.util.temporary_folders import make_temporary_folder

Action = Literal["inject", "capture", "ops"]
_PREFIX = "tensordiff-rerun-"


def injection(session: Session, at: str, rules: RulesFile | None = None) -> Injection:
    """The reference's inputs for a run of the candidate; ``at`` has the syntax of ``--inject-at``.

    Layers are paired by the rules in force, or by ``rules`` if the session is not yet aligned by those.
    """
    file = session.request.rules
    return Injection(
        str(session.reference.path.absolute()),
        at,
        None if file is None else str(file.expanduser().absolute()),
        rules_text(session.rules if rules is None else rules),
    )


def offer_of(session: Session, side: Side) -> RerunOffer:
    """What would be run for a side; raises ``CaptureError`` if it cannot be run again."""
    request, is_reference = session.request, side == "reference"
    said = request.settings if is_reference else request.candidate_settings or request.settings
    dumps = session.reference, session.candidate, session.third_dumps.injected, session.third_dumps.golden
    near = [dump.path for dump in dumps if dump is not None]
    return rerun_offer(session.reference if is_reference else session.candidate, f"the {side}", said, near)


def is_rerun(path: Path) -> bool:
    """Whether a dump was made by a rerun rather than given by the user."""
    return any(part.startswith(_PREFIX) for part in path.parts)


@dataclass(frozen=True)
class Rerunner:
    """Runs the sides of a session again."""

    session: Session
    folder: Path | None = None
    """Where runs put their dumps, one folder per run; None for the request's ``keep`` folder, or temporary folders."""
    child: ReusableChild | None = None
    """Keeps the process of one run for the next; the caller closes it."""
    trust: Trust = field(default_factory=Trust)
    """What may be run beside the user's own captures."""

    def offer(self, side: Side) -> RerunOffer:
        """What would be run for a side."""
        return offer_of(self.session, side)

    def why_not(self, action: Action, side: Side = "candidate") -> str | None:
        """Why a side cannot be run now, as a sentence; None if it can, perhaps after asking the user."""
        try:
            offer = self.offer(side)
            if action == "ops":
                refuse_settings(offer.source, Settings(ops="any"))
        except CaptureError as error:
            return str(error)
        if action == "inject" and not any(entry.is_input for entry in self.session.reference.entries):
            return f"the reference {printable(self.session.reference.path)} has no inputs that could be injected"
        return None

    def inject(self, at: str = "all", rules: RulesFile | None = None) -> Run:
        """Run the candidate with the reference's inputs; for the arguments see ``injection``."""
        settings = self.offer("candidate").settings
        return self._run(
            "candidate", replace(settings, inject=injection(self.session, at, rules), gradients=False), "injected"
        )

    def capture(self, side: Side = "candidate", settings: Settings | None = None) -> Run:
        """Run a side with its recorded or with other settings; the candidate continues with the reference's tokens."""
        offer = self.offer(side)
        asked = settings or offer.settings
        return self._run(side, self._with_tokens(offer, asked) if side == "candidate" else asked, "captured")

    def stream(self, settings: Settings, window_bytes: int) -> tuple[Request, StreamOptions]:
        """The request and options that compare the candidate while it runs with these settings.

        Whatever diverges is kept in a folder like those of other runs. Raises ``UntrustedSource`` as they do.
        """
        offer = self.offer("candidate")
        refuse_untrusted(offer, self.trust)
        request = self.session.request.with_candidate(Path(str(offer.source)))
        options = StreamOptions(window_bytes, folder=self._folder(f"{_PREFIX}candidate-streamed-"))
        return replace(request, candidate_settings=self._with_tokens(offer, settings)), options

    def _with_tokens(self, offer: RerunOffer, asked: Settings) -> Settings:
        """The candidate's settings, with the reference's decoded tokens if both get the same input."""
        reference = self.session.reference
        is_same = have_same_input(asked, offer.settings) and token_ids(reference) == token_ids(self.session.candidate)
        return with_decoded_tokens_of(reference, asked, ENGINES[offer.source.kind]) if is_same else asked

    def operations(self, layer: str, side: Side = "candidate") -> Run:
        """Run a side and write every operation inside one of its layers."""
        return self._run(side, replace(self.offer(side).settings, ops=layer, inject=None, gradients=False), "ops")

    def _run(self, side: Side, settings: Settings, purpose: str) -> Run:
        """Run a side; raises ``UntrustedSource`` unless the user has agreed to what its dump names."""
        offer = self.offer(side)
        refuse_untrusted(offer, self.trust)
        folder = self._folder(f"{_PREFIX}{side}-{purpose}-")
        return Run(Job(offer.source, settings, str(folder / "dump")), self.child)

    def _folder(self, prefix: str) -> Path:
        kept = self.folder or self.session.request.keep
        if kept is None:
            return make_temporary_folder(prefix)
        try:
            kept.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix=prefix, dir=kept.absolute()))
        except OSError as error:
            raise WriteError(f"{printable(kept)}: nothing can be kept there ({error.strerror or error})") from error
