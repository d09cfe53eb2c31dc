"""How a source is to be run: the few settings that people change, over those it was run with.

Running sides again from the screen: injection, another capture, the operations within a layer.

The running is ``live``'s, in a child process that the job line shows; this asks what is missing, begins, and
says what is to be compared when it is done. Where something cannot be run, the reason is told, and no key is
dead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.widgets import Input, Label

from tensordiff.capture.child import ReusableChild
from tensordiff.capture.events import Done, Failed
from tensordiff.capture.runner import Run
from tensordiff.capture.settings import Settings
from tensordiff.errors import TensordiffError
from tensordiff.session.request import Request
from tensordiff.session.reruns import Action, Rerunner
from tensordiff.session.sources import Sources
from tensordiff.session.third_dumps import injected_beside
from tensordiff.tui.comparison.opening_screen import CouldNotOpen
from tensordiff.tui.dialogs import Ask, Choose, Dialog
from tensordiff.tui.jobs.job_line import JobLine

if TYPE_CHECKING:
    from tensordiff.tui.comparison.screen import DiffScreen


_FIELDS = (
    ("prompt", "prompt", "as it was"),
    ("layers", "layers (regular expression of those to write)", "all"),
    ("dtype", "dtype", "the source's own"),
    ("device", "device", "auto"),
    ("num_hidden_layers", "only the first so many layers", "all"),
)


class CaptureForm(Dialog[Settings]):
    """Settings of one run."""

    def __init__(self, source: str, settings: Settings) -> None:
        super().__init__(f"Capture {source}")
        self.settings = settings

    def ask(self) -> ComposeResult:
        """One field a setting."""
        for name, label, usual in _FIELDS:
            value = getattr(self.settings, name)
            yield Label(label, markup=False)
            yield Input("" if value is None else str(value), placeholder=usual, id=name, compact=True)

    @on(Input.Submitted)
    def _take(self) -> None:
        self.action_accept()

    def answer(self) -> Settings | None:
        """The settings as they were, with what was changed."""
        said = {name: self.query_one(f"#{name}", Input).value.strip() or None for name, _, _ in _FIELDS}
        count = said.pop("num_hidden_layers")
        if count is not None and not (count.isascii() and count.isdecimal() and int(count) > 0):
            self.say(f"{count} is no number of layers")
            return None
        changed: dict[str, object] = {**said, "device": said["device"] or "auto"}
        if said["prompt"] != self.settings.prompt:
            changed |= {"input_ids": None, "prompt_file": None}
        settings = replace(self.settings, **changed)  # type: ignore[arg-type]
        return replace(settings, num_hidden_layers=int(count) if count else None)


PLACES = (
    ("here", "here only: this layer is given the reference's inputs"),
    ("all", "every matched layer, each by itself"),
    ("once", "every matched layer, in one pass"),
    ("range", "a range of layers…"),
)
WHY = {
    "here": "here, since this layer diverges: with right inputs it shows whether it is wrong by itself",
    "all": "every layer, since this one does not diverge: then each that is wrong by itself shows",
}
"""Why a place is the usual one."""


class Reruns:
    """What can be run again for one comparison."""

    def __init__(self, screen: DiffScreen) -> None:
        self.screen = screen
        self._live: Rerunner | None = None
        self._standby = ReusableChild()
        self._ops_reference: Path | None = None
        self._sources: Sources | None = None
        """What is to be opened when its sources have run."""

    def live(self) -> Rerunner | None:
        """The session that can be run, made anew where another is shown."""
        session = self.screen.session
        if session is None:
            return None
        if self._live is None or self._live.session is not session:
            again = Rerunner(session, child=self._standby) if self._live is None else self._live
            self._live = replace(again, session=session)
        return self._live

    def close(self) -> None:
        """Leave no child behind that waits for another run."""
        self._standby.close()

    def why_not(self, action: Action) -> str | None:
        """Why something cannot be run now, with a way out."""
        live = self.live()
        if live is None:
            return "the dumps are still being opened"
        if self.screen.query_one(JobLine).run is not None:
            return "something is running already; x ends it"
        return live.why_not(action)

    def _may(self, action: Action) -> bool:
        why = self.why_not(action)
        if why is not None:
            self.screen.tell(why, "warning")
        return why is None

    def _begin(self, begin: Callable[[], Run], title: str, purpose: str) -> None:
        try:
            run = begin()
        except TensordiffError as error:
            self.screen.tell(str(error), "error")
            return
        self.screen.query_one(JobLine).start(run, title, purpose)
        self.screen.refresh_bindings()

    # --- injection -------------------------------------------------------------------------------

    def toggle_injected(self) -> None:
        """Show injected errors or hide them; take a dump that lies beside; else offer a rerun."""
        screen = self.screen
        if screen.session is None:
            screen.tell("the dumps are still being opened", "warning")
        elif screen.session.engine.injected is not None:
            screen.show_injected(not screen.shows_injected)
        elif (beside := injected_beside(screen.request.candidate)) is not None:
            screen.tell(f"injected errors from {beside}")
            screen.open(replace(screen.request, injected=beside))
        else:
            self.inject()

    def inject(self) -> None:
        """Ask where, and rerun. Who stands on what diverges asks about that; who does not, where to look."""
        pair, row = self.screen.pair, self.screen.row_here()
        if self._may("inject") and pair is not None:
            title = f"Rerun the candidate with the reference's inputs; the cursor is on {pair.name}"
            usual = "here" if row is not None and row.verdict.name == "diverges" else "all"
            self.screen.app.push_screen(Choose(title, PLACES, usual, WHY[usual]), self._inject_at)

    def _inject_at(self, place: str | None) -> None:
        pair, live = self.screen.pair, self.live()
        if place is None or pair is None or live is None:
            return
        if place == "range":
            ask = Ask("Which layers?", f"{pair.name}..", "FROM..TO, or a regular expression")
            self.screen.app.push_screen(ask, lambda where: self._inject(live, where) if where else None)
        else:
            self._inject(live, pair.name if place == "here" else place)

    def _inject(self, live: Rerunner, where: str) -> None:
        rules = self.screen.rules
        self._begin(lambda: live.inject(where, rules), f"inject at {where}", "inject")

    # --- another capture, operations -------------------------------------------------------------

    def capture(self) -> None:
        """Ask for settings, and run the candidate again."""
        live = self.live()
        if not self._may("capture") or live is None or (made := live.provenance("candidate")) is None:
            return

        def begin(settings: Settings | None) -> None:
            if settings is not None:
                self._begin(lambda: live.capture("candidate", settings), f"capture {made.source}", "capture")

        self.screen.app.push_screen(CaptureForm(str(made.source), made.settings), begin)

    def ops(self) -> None:
        """Both sides' operations within the layer under the cursor."""
        live, pair = self.live(), self.screen.pair
        if not self._may("ops") or live is None or pair is None:
            return
        if (why := live.why_not("ops", "reference")) is not None:
            self.screen.tell(why, "warning")
            return
        layer = pair.reference.layer
        self._begin(
            lambda: live.operations(layer, "reference"), f"operations of {layer}, reference", f"ops:{pair.index}"
        )

    # --- sources in place of dumps ---------------------------------------------------------------

    def run_sources(self, request: Request) -> bool:
        """Where a side is a source, run it first; whether one is."""
        return self._run_next(Sources.of(request))

    def _run_next(self, sources: Sources) -> bool:
        if sources.side is None:
            return False
        self._sources = sources
        self.screen.in_thread("open", partial(self._start_source, sources))
        return True

    def _start_source(self, sources: Sources) -> None:
        """In a thread: what the candidate is asked is read from the reference's dump."""
        run = Run(sources.job(), self._standby)
        line = self.screen.query_one(JobLine)
        self.screen.app.call_from_thread(line.start, run, f"capture {run.job.source}", "source")

    # --- what came of it -------------------------------------------------------------------------

    def ended(self, message: JobLine.Ended) -> None:
        """A run is over."""
        self.screen.refresh_bindings()
        if isinstance(message.end, Failed):
            if self.screen.session is None:
                self.screen.post_message(CouldNotOpen(message.end.sentence))
            self.screen.tell(message.end.sentence, "warning" if "cancelled" in message.end.sentence else "error")
            return
        self._done(message.end, message.purpose)

    def _done(self, end: Done, purpose: str) -> None:
        request, path = self.screen.request, Path(end.path)
        if purpose == "source" and self._sources is not None:
            sources = self._sources.with_dump(path)
            if not self._run_next(sources):
                self.screen.open(sources.request)
        elif purpose == "inject":
            self.screen.tell(f"{end.entries} tensors with injected inputs, in {path}")
            self.screen.open(replace(request, injected=path))
        elif purpose == "capture":
            self.screen.tell(f"captured {end.entries} tensors into {path}")
            self.screen.open(request.with_candidate(path))
        elif purpose == "ops:candidate" and self._ops_reference is not None:
            self.screen.compare_inside(request.of_operations(self._ops_reference, path))
        else:
            self._ops_of_candidate(path, int(purpose.partition(":")[2]))

    def _ops_of_candidate(self, reference: Path, index: int) -> None:
        """The second half: the reference's operations are there."""
        self._ops_reference = reference
        live, session = self.live(), self.screen.session
        pair = next((one for one in session.pairs if one.index == index), None) if session else None
        if live is not None and pair is not None:
            layer = pair.candidate.layer
            self._begin(
                lambda: live.operations(layer, "candidate"), f"operations of {layer}, candidate", "ops:candidate"
            )
