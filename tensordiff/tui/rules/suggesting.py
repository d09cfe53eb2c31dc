"""Suggestions in the rules panel: looking by value, and accepting what was found.

Looking by value reads tensors, so it begins only when somebody comes to orphans or suggestions, runs in a
thread that can be stopped, and shows what it finds as it finds it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from textual import on, work
from textual.message import Message
from textual.widgets import Input, Static
from textual.worker import get_current_worker

from tensordiff.align.rules.rule import Side
from tensordiff.align.rules.tables import MapRule
from tensordiff.align.suggest import Suggestion
from tensordiff.errors import printable
from tensordiff.session.session import Session
from tensordiff.tui.dialogs import Ask
from tensordiff.tui.line_list import LineList
from tensordiff.tui.rules.map_screen import MapScreen
from tensordiff.tui.rules.orphan_list import Orphan, OrphanList, SuggestionList
from tensordiff.tui.rules.panel_part import PanelPart

_EVERY = 0.1
"""Seconds between two showings of what was found so far."""
_USUAL = "0.9"


class _Stopped(Exception):
    """Nobody wants to know any more."""


class Looking(NamedTuple):
    """How far the search by value is."""

    how: Literal["not yet", "looking", "done", "stopped"] = "not yet"
    found: tuple[Suggestion, ...] = ()
    """As they came: their order is theirs, and what they prove together."""


class Suggesting(PanelPart):
    """What the rules panel does with suggestions."""

    looking = Looking()

    @dataclass
    class _Found(Message):
        """From the thread."""

        session: Session
        looking: Looking

    @dataclass
    class _Proven(Message):
        """From the thread."""

        maps: tuple[MapRule, ...]

    @property
    def orphans(self) -> OrphanList:
        """The list of orphans."""
        return self.query_one(OrphanList)

    @property
    def suggestions(self) -> SuggestionList:
        """The list of suggestions."""
        return self.query_one(SuggestionList)

    # --- looking by value ------------------------------------------------------------------------

    def look_by_value(self, at: LineList[object]) -> None:
        """Begin, where somebody came to orphans or suggestions and nobody looked yet."""
        if at in (self.orphans, self.suggestions) and self.looking.how == "not yet" and self.orphans.all:
            self._begin()

    def _begin(self) -> None:
        self.looking = Looking("looking")
        self.show_suggestions()
        self._look(self.session)

    @work(thread=True, exclusive=True, group="suggest", description="suggest", exit_on_error=False)
    def _look(self, session: Session) -> None:
        worker = get_current_worker()
        found: list[Suggestion] = []
        shown = time.monotonic()

        def tick() -> None:
            if worker.is_cancelled:
                raise _Stopped

        try:
            for one in session.dumps.suggestions(tick):
                found.append(one)
                if time.monotonic() - shown > _EVERY:
                    shown = time.monotonic()
                    self.post_message(self._Found(session, Looking("looking", tuple(found))))
        except _Stopped:
            return
        self.post_message(self._Found(session, Looking("done", tuple(found))))

    @on(_Found)
    def _take_found(self, event: _Found) -> None:
        event.stop()
        if event.session.alignment is self.session.alignment and self.looking.how == "looking":
            self.looking = event.looking
            self.show_suggestions()

    def forget_suggestions(self) -> None:
        """Another alignment leaves others over; what was found is of the old one."""
        self.workers.cancel_group(self, "suggest")
        self.looking = Looking()
        if any(one.has_focus for one in (self.orphans, self.suggestions)):
            self.call_after_refresh(self.look_by_value, self.orphans)

    def _toggle_looking(self) -> None:
        if self.looking.how == "looking":
            self.workers.cancel_group(self, "suggest")
            self.looking = self.looking._replace(how="stopped")
            self.show_suggestions()
        else:
            self._begin()

    def show_suggestions(self) -> None:
        """Show what was found, the surest first."""
        found = self.looking.found
        self.suggestions.show_items(sorted(found, key=lambda one: -one.confidence))
        heading = {
            "not yet": "suggestions: not looked yet" if self.orphans.all else "suggestions: nothing is left over",
            "looking": f"suggestions: {len(found)}, looking by value… s stops",
            "done": f"suggestions: {len(found) or 'none'} by value",
            "stopped": f"suggestions: {len(found)}, stopped; s looks again",
        }[self.looking.how]
        self.query_one("#suggestions-heading", Static).update(heading, layout=False)

    # --- suggestions -----------------------------------------------------------------------------

    @on(LineList.Highlighted, "#suggestions")
    def _about_suggestion(self, event: LineList.Highlighted) -> None:
        event.stop()
        if self.suggestions.has_focus:
            self.show_about(_told(self.suggestions.current))

    @on(LineList.Asked, "#suggestions")
    def _do_suggestion(self, event: LineList.Asked) -> None:
        event.stop()
        found = self.suggestions.current
        match event.what:
            case "accept" if found is not None:
                self._accept([found])
            case "pick" | "expression" if found is not None:
                screen = MapScreen(self.session, found.reference, found.candidate, "Accept suggestion")
                self.app.push_screen(screen, lambda rule: self.add_maps((rule,)) if rule else None)
            case _:
                self.do_either(event.what)

    def accept_for(self, orphan: Orphan) -> None:
        """The surest suggestion that speaks of an orphan."""
        label = self.session.dumps.label(orphan.entry, orphan.side)
        fitting = [one for one in self.suggestions.items if label in _side(one, orphan.side)]
        if fitting:
            self._accept(fitting[:1])
        else:
            self.notify("nothing is suggested for it; pick one of the other side, or x types an expression")

    def _accept(self, chosen: Sequence[Suggestion]) -> None:
        self._prove(self.session, tuple(chosen), self.looking.found)

    @work(thread=True, exclusive=True, group="accept", description="accept", exit_on_error=False)
    def _prove(self, session: Session, chosen: tuple[Suggestion, ...], among: tuple[Suggestion, ...]) -> None:
        """For every layer where what was found proves every layer: that takes both indexes."""
        self.post_message(self._Proven(session.dumps.maps_of_chosen(chosen, among)))

    @on(_Proven)
    def _take_proven(self, event: _Proven) -> None:
        event.stop()
        self.add_maps(event.maps)

    def _ask_confidence(self) -> None:
        if not self.looking.found:
            self.notify("nothing is suggested yet; s looks by value", markup=False)
            return
        title = f"Accept which of {len(self.looking.found)} suggestions?"
        ask = Ask(title, _USUAL, "Those of at least this confidence, from 0 to 1.", _wrong_confidence)
        self.app.push_screen(ask, self._accept_above)

    def _accept_above(self, said: str | None) -> None:
        if said is None:
            return
        chosen = [one for one in self.looking.found if one.confidence >= float(said)]
        if chosen:
            self._accept(chosen)
        else:
            self.notify(f"no suggestion is as sure as {said}", markup=False)

    def do_either(self, what: str) -> None:
        """What both lists do alike."""
        match what:
            case "filter":
                field = self.query_one("#orphan-filter", Input)
                field.add_class("-shown")
                field.focus()
            case "suggest":
                self._toggle_looking()
            case "accept_above":
                self._ask_confidence()
            case "undo":
                self.undo()


def _told(found: Suggestion | None) -> str:
    if found is None:
        return ""
    rivals = f"; {found.rivals} more fit as well" if found.rivals else "; nothing else fits"
    names = printable(f"{found.reference} = {found.candidate}")
    return f"{names}\n{'; '.join(found.evidence)}{rivals}"


def _side(one: Suggestion, side: Side) -> str:
    return one.reference if side == "reference" else one.candidate


def _wrong_confidence(said: str) -> str | None:
    try:
        return None if 0 <= float(said) <= 1 else "a confidence is a number from 0 to 1"
    except ValueError:
        return "a confidence is a number from 0 to 1, such as 0.9"
