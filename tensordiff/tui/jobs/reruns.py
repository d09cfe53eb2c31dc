"""Running sides again from a comparison: sources, injection, another capture, the operations within a layer.

``session.rerun.reruns`` prepares a run; it runs in a child process, which the job line shows. This module asks for what
is missing, starts the run, and opens its result. If something cannot be run, the reason is shown, so that no key is
dead. If a dump names what is to be run and the user did not capture it, all of it is shown and the user is asked first;
a yes holds as long as the comparison is open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tensordiff.align.match import Pair
from tensordiff.align.rules.rule import Side
from tensordiff.capture.child import ReusableChild
from tensordiff.capture.events import Done, Failed
from tensordiff.capture.runner import Run
from tensordiff.capture.settings import Settings
from tensordiff.errors import CaptureError, TensordiffError, printable
from tensordiff.session.request import Request
from tensordiff.session.rerun.reruns import Action, Rerunner, is_rerun
from tensordiff.session.rerun.trust import RerunOffer, Trust
from tensordiff.session.sources import Sources
from tensordiff.session.storage.state import SessionState
from tensordiff.session.third_dumps import injected_beside
from tensordiff.tui.comparison.streaming import StreamRun
from tensordiff.tui.dialogs import Ask, Choose
from tensordiff.tui.jobs.capture_form import CaptureChoice, CaptureForm
from tensordiff.tui.jobs.consent import Consent
from tensordiff.tui.jobs.job_line import JobLine, Purpose
from tensordiff.tui.notice import tell
from tensordiff.tui.permissions import NO_RERUNS, permissions_of
from tensordiff.tui.threads import in_thread
from tensordiff.util.temporary_folders import is_temporary, keep_temporary_folder

if TYPE_CHECKING:
    from tensordiff.tui.comparison.screen import ComparisonScreen

_SCOPES = (
    ("here", "here only: this layer is given the reference's inputs"),
    ("all", "every matched layer, each by itself"),
    ("once", "every matched layer, in one pass"),
    ("range", "a range of layers…"),
)
_REASONS = {
    "here": "here, since this layer diverges: with right inputs it shows whether the layer itself is wrong",
    "all": "every layer, since this one does not diverge: shows each layer that is wrong by itself",
}
"""Why a choice is offered first."""
_BESIDE = (
    "is then used as the candidate's run with the reference's inputs: it decides which layers are wrong by "
    "themselves and which only because of what came before. Take it if you know where it comes from."
)


class Reruns:
    """The reruns of one comparison."""

    def __init__(self, screen: ComparisonScreen) -> None:
        self._screen = screen
        self._owner = screen.owner
        self.shows_injected = True
        """Whether injected errors are shown, if there are any."""
        self._child = ReusableChild()
        self._trust = Trust()
        self._sources: Sources | None = None
        """The sources to run before their comparison is opened."""
        self._operations: tuple[Pair, Path | None] | None = None
        """The pair whose operations are being captured, and the reference's dump of them once it exists."""

    @property
    def _job_line(self) -> JobLine:
        return self._screen.query_one(JobLine)

    def close(self) -> None:
        """End the child process that waits for another run."""
        self._child.close()

    # --- whether something can be run ------------------------------------------------------------

    def _rerunner(self) -> Rerunner | None:
        session = self._owner.session
        return None if session is None else Rerunner(session, child=self._child, trust=self._trust)

    def _runnable(self, action: Action, *sides: Side) -> Rerunner | None:
        """The rerunner, if these sides can be run now; otherwise shows the reason."""
        rerunner = self._rerunner()
        if not permissions_of(self._screen).reruns:
            why: str | None = NO_RERUNS
        elif rerunner is None:
            why = "the dumps are still being opened"
        elif self._job_line.run is not None:
            why = "something is running already; x ends it"
        else:
            why = next((why for side in sides if (why := rerunner.why_not(action, side)) is not None), None)
        if why is not None:
            tell(self._screen, why, "warning")
            return None
        return rerunner

    def _begin(self, begin: Callable[[Rerunner], Run | StreamRun], title: str, purpose: Purpose, *sides: Side) -> None:
        """Begin a run of the first of these sides, once the user has agreed to everything that the dumps of all of them
        name.
        """
        if (rerunner := self._rerunner()) is None:
            return
        try:
            self._refuse_unless_permitted()
            offers = [rerunner.offer(side) for side in sides]
            if untrusted := [offer for offer in offers if not self._trust.allows(offer)]:
                self._ask_consent(untrusted[0], partial(self._begin, begin, title, purpose, *sides))
                return
            run = begin(rerunner)
        except TensordiffError as error:
            tell(self._screen, str(error), "error")
            return
        for note in offers[0].notes():
            tell(self._screen, note, "warning")
        self._job_line.start(run, title, purpose)
        self._screen.refresh_bindings()

    def _refuse_unless_permitted(self) -> None:
        if not permissions_of(self._screen).reruns:
            raise CaptureError(NO_RERUNS)

    def _ask_consent(self, offer: RerunOffer, then: Callable[[], None]) -> None:
        """Continue once the user has read what would be run, and typed yes."""

        def take(agreed: bool | None) -> None:
            if agreed:
                self._trust = self._trust.agreeing(offer)
                then()

        self._screen.app.push_screen(Consent(offer), take)

    # --- keeping captured dumps ---------------------------------------------------------------------

    def keep(self) -> None:
        """Keep the dumps that were captured for this comparison when the app ends."""
        request = self._owner.request
        paths = (request.reference, request.candidate, request.injected, *self._owner.kept_dumps)
        kept = [path for path in paths if path is not None and keep_temporary_folder(path)]
        if kept:
            tell(self._screen, "\n".join(("these stay when the app ends:", *map(str, kept))))
        else:
            tell(self._screen, "nothing here is temporary, so there is nothing to keep", "warning")

    # --- injection -------------------------------------------------------------------------------

    def mode(self) -> str:
        """Where the injected errors come from, in a few words; empty if there are none."""
        session = self._owner.session
        if session is None or session.comparer.injected is None:
            return ""
        path = session.request.injected
        name = "rerun" if path is None or is_rerun(path) else printable(path.name)
        return f"injected: {name}" if self.shows_injected else "injected errors hidden (i)"

    def toggle_injected(self) -> None:
        """Show or hide injected errors; if there are none, offer a dump beside the candidate, or a rerun."""
        screen, request = self._screen, self._owner.request
        if self._owner.session is None:
            tell(screen, "the dumps are still being opened", "warning")
        elif self._owner.session.comparer.injected is not None:
            self.shows_injected = not self.shows_injected
            screen.show_columns()
            screen.summarize()
            if not self.shows_injected:
                tell(screen, "injected errors are hidden; i shows them again")
        elif (beside := injected_beside(request.candidate)) is not None:
            self._offer_beside(beside)
        else:
            self.inject()

    def _offer_beside(self, beside: Path) -> None:
        """Ask before using a dump that nobody named."""
        reruns = [("rerun", "leave it, and rerun the candidate…")] if permissions_of(self._screen).reruns else []
        choices = (("take", "take it"), *reruns, ("leave", "leave it"))

        def take(choice: str | None) -> None:
            if choice == "rerun":
                self.inject()
            elif choice == "take":
                tell(self._screen, f"injected errors from {beside}")
                self._screen.open(replace(self._owner.request, injected=beside))

        title = "Injected errors from the dump beside the candidate?"
        self._screen.app.push_screen(Choose(title, choices, "take", f"{beside} {_BESIDE}"), take)

    def inject(self) -> None:
        """Ask where to inject, and rerun. The default is this layer if it diverges, else every layer."""
        pair, row = self._screen.pane.pair, self._screen.pane.row
        if self._runnable("inject", "candidate") is not None and pair is not None:
            title = f"Rerun the candidate with the reference's inputs; the cursor is on {pair.name}"
            usual = "here" if row is not None and row.verdict.name == "diverges" else "all"
            self._screen.app.push_screen(Choose(title, _SCOPES, usual, _REASONS[usual]), self._inject_in)

    def _inject_in(self, scope: str | None) -> None:
        pair = self._screen.pane.pair
        if scope is None or pair is None:
            return
        if scope == "range":
            ask = Ask("Which layers?", f"{pair.name}..", "FROM..TO, or a regular expression")
            self._screen.app.push_screen(ask, lambda where: self.inject_at(where) if where else None)
        else:
            self.inject_at(pair.name if scope == "here" else scope)

    def inject_at(self, where: str) -> None:
        """Rerun with inputs injected, paired by the rules as they are shown; ``where`` is as in ``--inject-at``."""
        rules = self._owner.rules
        self._begin(
            lambda rerunner: rerunner.inject(where, rules), f"inject at {where}", Purpose.INJECTION, "candidate"
        )

    # --- another capture, operations -------------------------------------------------------------

    def capture(self) -> None:
        """Ask for settings, and run the candidate again: into a dump, or compared while it runs."""
        if (rerunner := self._runnable("capture", "candidate")) is None:
            return
        offer = rerunner.offer("candidate")

        def begin(choice: CaptureChoice | None) -> None:
            if choice is None:
                return
            settings, window = choice
            if window is not None:
                again = partial(self._stream, settings, window)
                self._begin(again, f"stream {offer.source}", Purpose.STREAM, "candidate")
            else:
                title = f"capture {offer.source}"
                self._begin(lambda again: again.capture("candidate", settings), title, Purpose.CAPTURE, "candidate")

        self._screen.app.push_screen(CaptureForm(str(offer.source), offer.settings), begin)

    def _stream(self, settings: Settings, window_bytes: int, rerunner: Rerunner) -> StreamRun:
        """Compare the candidate while it runs.

        A waiting process with a model is ended first: the stream loads its own.
        """
        request, options = rerunner.stream(settings, window_bytes)
        self._child.close()
        self._child = ReusableChild()
        return self._owner.stream(request, options)

    def operations(self) -> None:
        """Capture both sides' operations within the layer under the cursor, the reference's first."""
        pair, rerunner = self._screen.pane.pair, self._runnable("ops", "candidate", "reference")
        if rerunner is not None and pair is not None:
            self._operations = pair, None
            layer = pair.reference.layer
            title = f"operations of {layer}, reference"
            purpose = Purpose.REFERENCE_OPERATIONS
            self._begin(lambda again: again.operations(layer, "reference"), title, purpose, "reference", "candidate")

    def _operations_of_candidate(self, reference: Path) -> None:
        if self._operations is None:
            return
        pair = self._operations[0]
        self._operations = pair, reference
        layer = pair.candidate.layer
        title = f"operations of {layer}, candidate"
        purpose = Purpose.CANDIDATE_OPERATIONS
        self._begin(lambda again: again.operations(layer, "candidate"), title, purpose, "candidate")

    def _compare_operations(self, candidate: Path) -> None:
        """Open both sides' operations, with the rules and tolerances of this comparison."""
        if self._operations is None or (reference := self._operations[1]) is None:
            return
        owner = self._owner
        rules = SessionState(rules=owner.rules, rules_base=owner.book.saved_rules)
        self._screen.compare_inside(owner.request.of_operations(reference, candidate), rules)

    # --- sources in place of dumps ---------------------------------------------------------------

    def run_sources(self, request: Request) -> bool:
        """Run the first side that is a source; returns whether one is."""
        sources = Sources.of(request)
        if sources.side is not None:
            self._refuse_unless_permitted()
        for sentence in sources.unused_options():
            tell(self._screen, sentence)
        return self._run_next(sources)

    def _run_next(self, sources: Sources) -> bool:
        if sources.side is None:
            return False
        self._sources = sources
        in_thread(self._screen, "source", partial(self._start_source, sources))
        return True

    def _start_source(self, sources: Sources) -> None:
        """In a thread, because the candidate's input is read from the reference's dump."""
        run = Run(sources.job(), self._child)
        title = f"capture {run.job.source}"
        self._screen.app.call_from_thread(self._job_line.start, run, title, Purpose.SOURCE)

    # --- the results of runs ---------------------------------------------------------------------

    def ended(self, message: JobLine.Ended) -> None:
        """Handle the end of a run."""
        self._screen.refresh_bindings()
        if isinstance(message.end, Failed) and message.end.path is not None and not message.is_cancelled:
            keep_temporary_folder(Path(message.end.path))  # the error says where it is
        if message.purpose is Purpose.STREAM:
            self._tell_stream_end(message)
        elif isinstance(message.end, Done):
            self._done(message.end, message.purpose)
        elif self._owner.session is None or not message.is_cancelled:
            self._screen.give_up(message.end.sentence)
        else:
            tell(self._screen, message.end.sentence, "warning")

    def _done(self, end: Done, purpose: Purpose) -> None:
        screen, path = self._screen, Path(end.path)
        request = self._owner.request
        match purpose:
            case Purpose.SOURCE if self._sources is not None:
                sources = self._sources.with_dump(path)
                if not self._run_next(sources):
                    screen.open(sources.request)
            case Purpose.INJECTION:
                tell(screen, f"{end.entries} tensors with injected inputs, in {path}{_how_long(path)}")
                screen.open(replace(request, injected=path))
            case Purpose.CAPTURE:
                tell(screen, f"captured {end.entries} tensors into {path}{_how_long(path)}")
                screen.open(request.with_candidate(path))
            case Purpose.REFERENCE_OPERATIONS:
                self._operations_of_candidate(path)
            case Purpose.CANDIDATE_OPERATIONS:
                self._compare_operations(path)

    def _tell_stream_end(self, message: JobLine.Ended) -> None:
        """Say where the kept tensors are, or why there are none."""
        kept = "".join(f"; kept in {path}{_how_long(path)}" for path in self._owner.kept_dumps)
        if isinstance(message.end, Failed):
            tell(self._screen, f"{message.end.sentence}{kept}", "warning" if message.is_cancelled else "error")
        else:
            tell(self._screen, f"{self._owner.stream_note}{kept}")


def _how_long(path: Path) -> str:
    """A remark for a captured dump that is deleted with the app."""
    return "; deleted when the app ends unless K keeps it" if is_temporary(path) else ""
