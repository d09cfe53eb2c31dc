"""Suggestions in the rules panel: searching by value, and accepting what was found.

Searching by value reads tensors, so it begins only when somebody comes to the orphans or suggestions. It runs in a
thread that can be stopped, and shows what it finds as it finds it.
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
"""How often what was found so far is shown."""
_USUAL_CONFIDENCE = "0.9"
Progress = Literal["not yet", "searching", "done", "stopped"]


@dataclass
class SuggestionsFound(Message):
    """From the thread that searches: all suggestions so far."""

    session: Session
    suggestions: tuple[Suggestion, ...]
    is_done: bool


@dataclass
class MapsProven(Message):
    """From a thread: the maps that come of suggestions a person accepted."""

    maps: tuple[MapRule, ...]


class _StopSearch(Exception):
    """Nobody waits for the suggestions any more."""


class SuggestionSearch:
    """The search by value of one panel, and its keys."""

    def __init__(self, panel: RulesPanel) -> None:
        self._panel = panel
        self.progress: Progress = "not yet"
        self.found: tuple[Suggestion, ...] = ()
        """As they came: which maps they prove depends on their order."""

    # --- searching -------------------------------------------------------------------------------

    def begin_at(self, at: LineList[object]) -> None:
        """Begin, where somebody came to the orphans or suggestions and nothing was searched yet."""
        panel = self._panel
        if at in (panel.orphans, panel.suggestions) and self.progress == "not yet" and panel.orphans.all:
            self._begin()

    def _begin(self) -> None:
        self.progress, self.found = "searching", ()
        self.show()
        in_thread(self._panel, "suggest", partial(self._run, self._panel.session))

    def _run(self, session: Session) -> None:
        """In a thread."""
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
        """Show what was found, if it is of the pairs that are shown."""
        if event.session.alignment is self._panel.session.alignment and self.progress == "searching":
            self.progress, self.found = "done" if event.is_done else "searching", event.suggestions
            self.show()

    def forget(self) -> None:
        """Another alignment leaves others over; what was found is of the old one."""
        panel = self._panel
        panel.workers.cancel_group(panel, "suggest")
        self.progress, self.found = "not yet", ()
        if any(one.has_focus for one in (panel.orphans, panel.suggestions)):
            panel.call_after_refresh(self.begin_at, panel.orphans)

    def toggle(self) -> None:
        """Stop searching, or begin again."""
        if self.progress == "searching":
            self._panel.workers.cancel_group(self._panel, "suggest")
            self.progress = "stopped"
            self.show()
        else:
            self._begin()

    def show(self) -> None:
        """Show what was found, the surest first."""
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
        """Accept the surest suggestion that speaks of an orphan."""
        panel = self._panel
        label = panel.session.dumps.label(orphan.entry, orphan.side)
        fitting = [one for one in panel.suggestions.items if label in _expression(one, orphan.side)]
        if fitting:
            self._accept(fitting[:1])
        else:
            panel.notify("nothing is suggested for it; pick one of the other side, or type an expression with x")

    def _accept(self, chosen: Sequence[Suggestion]) -> None:
        """For every layer where all that was found proves every layer: that takes both indexes, so in a thread."""
        session, among = self._panel.session, self.found
        post = self._panel.post_message
        in_thread(self._panel, "accept", lambda: post(MapsProven(session.dumps.maps_of_chosen(tuple(chosen), among))))

    def ask_confidence(self) -> None:
        """Accept all suggestions of at least some confidence."""
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
