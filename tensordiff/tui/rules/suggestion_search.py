"""Suggestions in the rules panel: the search by value, and accepting its results.

The search reads tensors, so it begins only when the user comes to the orphans or suggestions. It runs in a thread that
can be stopped, and shows results as it finds them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from textual.message import Message
from textual.widgets import Static
from textual.worker import get_current_worker

from tensordiff.align.rules.rule import Side
from tensordiff.align.rules.tables import MapRule
from tensordiff.align.suggest import Suggestion
from tensordiff.errors import printable
from tensordiff.session.session import Session
from tensordiff.tui.dialogs import Ask
from tensordiff.tui.line_list import LineList
from tensordiff.tui.rules.map_screen import MapScreen
from tensordiff.tui.rules.orphan_list import Orphan
from tensordiff.tui.threads import in_thread

if TYPE_CHECKING:
    from tensordiff.tui.rules.panel import RulesPanel

_EVERY_S = 0.1
"""How often results are shown during the search."""
_USUAL_CONFIDENCE = "0.9"
Progress = Literal["not yet", "searching", "done", "stopped"]


@dataclass
class SuggestionsFound(Message):
    """Sent by the searching thread: all suggestions so far."""

    session: Session
    suggestions: tuple[Suggestion, ...]
    is_done: bool


@dataclass
class MapsProven(Message):
    """Sent by a thread: the maps of the suggestions that the user accepted."""

    maps: tuple[MapRule, ...]


class _StopSearch(Exception):
    """The search was stopped."""


class SuggestionSearch:
    """The search by value of one panel, and its keys."""

    def __init__(self, panel: RulesPanel) -> None:
        self._panel = panel
        self.progress: Progress = "not yet"
        self.found: tuple[Suggestion, ...] = ()
        """In the order they were found: it decides which maps they prove."""

    # --- searching -------------------------------------------------------------------------------

    def begin_at(self, at: LineList[object]) -> None:
        """Begin a first search, if the user came to the orphans or suggestions."""
        panel = self._panel
        if at in (panel.orphans, panel.suggestions) and self.progress == "not yet" and panel.orphans.all:
            self._begin()

    def _begin(self) -> None:
        self.progress, self.found = "searching", ()
        self.show()
        in_thread(self._panel, "suggest", partial(self._run, self._panel.session))

    def _run(self, session: Session) -> None:
        """Search; runs in a thread."""
        worker, post = get_current_worker(), self._panel.post_message
        found: list[Suggestion] = []
        shown = time.monotonic()

        def tick() -> None:
            if worker.is_cancelled:
                raise _StopSearch

        try:
            for one in session.dumps.suggestions(tick):
                found.append(one)
                if time.monotonic() - shown > _EVERY_S:
                    shown = time.monotonic()
                    post(SuggestionsFound(session, tuple(found), is_done=False))
        except _StopSearch:
            return
        post(SuggestionsFound(session, tuple(found), is_done=True))

    def take(self, event: SuggestionsFound) -> None:
        """Show results, if they are of the current pairs."""
        if event.session.alignment is self._panel.session.alignment and self.progress == "searching":
            self.progress, self.found = "done" if event.is_done else "searching", event.suggestions
            self.show()

    def forget(self) -> None:
        """Drop the results, which are of the previous alignment."""
        panel = self._panel
        panel.workers.cancel_group(panel, "suggest")
        self.progress, self.found = "not yet", ()
        if any(one.has_focus for one in (panel.orphans, panel.suggestions)):
            panel.call_after_refresh(self.begin_at, panel.orphans)

    def toggle(self) -> None:
        """Stop the search, or begin again."""
        if self.progress == "searching":
            self._panel.workers.cancel_group(self._panel, "suggest")
            self.progress = "stopped"
            self.show()
        else:
            self._begin()

    def show(self) -> None:
        """Show the results, the most confident first."""
        panel, count = self._panel, len(self.found)
        panel.suggestions.show_items(sorted(self.found, key=lambda one: -one.confidence))
        heading = {
            "not yet": "suggestions: not looked yet" if panel.orphans.all else "suggestions: nothing is left over",
            "searching": f"suggestions: {count}, looking by value… s stops",
            "done": f"suggestions: {count or 'none'} by value",
            "stopped": f"suggestions: {count}, stopped; s looks again",
        }[self.progress]
        panel.query_one("#suggestions-heading", Static).update(heading, layout=False)

    # --- accepting -------------------------------------------------------------------------------

    def do(self, what: str) -> None:
        """Do what a key asks for in the list of suggestions."""
        panel, suggestion = self._panel, self._panel.suggestions.current
        match what:
            case "accept" if suggestion is not None:
                self._accept([suggestion])
            case "pick" | "expression" if suggestion is not None:
                screen = MapScreen(panel.session, suggestion.reference, suggestion.candidate, "Accept suggestion")
                panel.app.push_screen(screen, lambda rule: panel.add_map_of_person(rule) if rule else None)
            case _:
                panel.do_in_orphans(what)

    def accept_for(self, orphan: Orphan) -> None:
        """Accept the most confident suggestion for an orphan."""
        panel = self._panel
        label = panel.session.dumps.label(orphan.entry, orphan.side)
        fitting = [one for one in panel.suggestions.items if label in _expression(one, orphan.side)]
        if fitting:
            self._accept(fitting[:1])
        else:
            panel.notify("nothing is suggested for it; pick one of the other side, or type an expression with x")

    def _accept(self, chosen: Sequence[Suggestion]) -> None:
        """Accept suggestions, for every layer if the results prove it. That needs both indexes, so a thread does it."""
        session, among = self._panel.session, self.found
        post = self._panel.post_message
        in_thread(self._panel, "accept", lambda: post(MapsProven(session.dumps.maps_of_chosen(tuple(chosen), among))))

    def ask_confidence(self) -> None:
        """Ask for a confidence, and accept all suggestions of at least that."""
        panel = self._panel
        if not self.found:
            panel.notify("nothing is suggested yet; s searches by value", markup=False)
            return
        title = f"Accept which of {len(self.found)} suggestions?"
        ask = Ask(title, _USUAL_CONFIDENCE, "Those with at least this confidence, from 0 to 1.", _wrong_confidence)
        panel.app.push_screen(ask, lambda text: self.accept_above(text) if text is not None else None)

    def accept_above(self, confidence: str) -> None:
        """Accept all suggestions of at least this confidence."""
        chosen = [one for one in self.found if one.confidence >= float(confidence)]
        if chosen:
            self._accept(chosen)
        else:
            self._panel.notify(f"no suggestion has a confidence of {confidence} or more", markup=False)

    def about(self) -> str:
        """The suggestion under the cursor, and its evidence."""
        suggestion = self._panel.suggestions.current
        if suggestion is None:
            return ""
        rivals = f"; {suggestion.rivals} more fit as well" if suggestion.rivals else "; nothing else fits"
        names = printable(f"{suggestion.reference} = {suggestion.candidate}")
        return f"{names}\n{'; '.join(suggestion.evidence)}{rivals}"


def _expression(one: Suggestion, side: Side) -> str:
    return one.reference if side == "reference" else one.candidate


def _wrong_confidence(text: str) -> str | None:
    try:
        return None if 0 <= float(text) <= 1 else "a confidence is a number from 0 to 1"
    except ValueError:
        return "a confidence is a number from 0 to 1, such as 0.9"
