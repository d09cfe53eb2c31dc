"""Orphans in the rules panel: picking one of each side, typing an expression, filtering."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual import events, on
from textual.widgets import Input, Static

from tensordiff.align.rules.rule import Side
from tensordiff.align.rules.tables import MapRule
from tensordiff.errors import printable
from tensordiff.tui.line_list import LineList
from tensordiff.tui.rules.map_screen import MapScreen
from tensordiff.tui.rules.orphan_list import Orphan
from tensordiff.tui.rules.suggesting import Suggesting


class Pairing(Suggesting):
    """What the rules panel does with orphans."""

    def show_orphan_heading(self) -> None:
        """How many orphans are shown, and what is picked."""
        orphans, picks = self.orphans, self.orphans.picks
        count = f"{len(orphans.items)} of {len(orphans.all)}" if orphans.pattern else str(len(orphans.all) or "none")
        text = Text(f"orphans: {count}")
        if picks:
            text.append(f" · {len(picks)} picked of the {picks[0].side}, pick one of the other", "italic")
        elif orphans.pattern:
            text.append(printable(f" matching {orphans.pattern}"))
        self.query_one("#orphans-heading", Static).update(text, layout=False)

    @on(LineList.Highlighted, "#orphans")
    def _about_orphan(self, event: LineList.Highlighted) -> None:
        event.stop()
        if self.orphans.has_focus:
            self.show_about(self._told_orphan(self.orphans.current))

    def _told_orphan(self, orphan: Orphan | None) -> str:
        if orphan is None:
            return ""
        why = "…" if self.hits is None else self.session.dumps.why_orphan(orphan.entry, orphan.side)
        return f"{orphan.side}: {printable(orphan.entry.name)}\n{why}"

    @on(LineList.Asked, "#orphans")
    def _do_orphan(self, event: LineList.Asked) -> None:
        event.stop()
        orphan = self.orphans.current
        match event.what:
            case "pick" if orphan is not None:
                self._pick(orphan)
            case "accept" if orphan is not None:
                self.accept_for(orphan)
            case "why" if orphan is not None:
                self.notify(self._told_orphan(orphan), markup=False)
            case "expression":
                self._open_map(self.orphans.picks or ((orphan,) if orphan else ()))
            case _:
                self.do_either(event.what)

    def _pick(self, orphan: Orphan) -> None:
        picks = self.orphans.pick(orphan)
        if {pick.side for pick in picks} == {"reference", "candidate"}:
            self._open_map(picks)
        self.show_orphan_heading()

    def _open_map(self, picks: Sequence[Orphan]) -> None:
        reference, candidate = (self._expression(picks, side) for side in ("reference", "candidate"))

        def done(rule: MapRule | None) -> None:
            self.orphans.picks = ()
            self.show_orphan_heading()
            self.orphans.refresh()
            if rule is not None:
                self.add_maps((rule,))

        self.app.push_screen(MapScreen(self.session, reference, candidate), done)

    def _expression(self, picks: Sequence[Orphan], side: Side) -> str:
        names = [self.session.dumps.label(pick.entry, side) for pick in picks if pick.side == side]
        return f"cat({', '.join(names)})" if len(names) > 1 else "".join(names)

    @on(Input.Changed, "#orphan-filter")
    def _filter(self, event: Input.Changed) -> None:
        event.stop()
        self.orphans.show_matching(event.value)
        self.show_orphan_heading()

    @on(Input.Submitted, "#orphan-filter")
    def _end_filter(self, event: Input.Submitted) -> None:
        event.stop()
        event.input.set_class(bool(event.value), "-shown")
        self.orphans.focus()

    def on_key(self, event: events.Key) -> None:
        """Escape in the filter shows all again."""
        field = self.query_one("#orphan-filter", Input)
        if event.key == "escape" and field.has_focus:
            event.stop()
            event.prevent_default()
            field.value = ""
            field.remove_class("-shown")
            self.orphans.focus()
