"""The actions of the keys in the list of orphans: picking one of each side, typing an expression, filtering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text
from textual.widgets import Input, Static

from tensordiff.align.rules.rule import Side
from tensordiff.align.rules.tables import MapRule
from tensordiff.errors import printable
from tensordiff.tui.rules.map_screen import MapScreen
from tensordiff.tui.rules.orphan_list import Orphan

if TYPE_CHECKING:
    from tensordiff.tui.rules.panel import RulesPanel


class OrphanActions:
    """Pairs the orphans of a panel."""

    def __init__(self, panel: RulesPanel) -> None:
        self._panel = panel

    def do(self, what: str) -> None:
        """Do what a key asks for."""
        orphans = self._panel.orphans
        orphan = orphans.current
        match what:
            case "pick" if orphan is not None:
                self._pick(orphan)
            case "accept" if orphan is not None:
                self._panel.search.accept_for(orphan)
            case "why" if orphan is not None:
                self._panel.notify(self.about(), markup=False)
            case "expression":
                self._open_map(orphans.picks or ((orphan,) if orphan else ()))
            case _:
                self._panel.do_in_orphans(what)

    def _pick(self, orphan: Orphan) -> None:
        picks = self._panel.orphans.pick(orphan)
        if {pick.side for pick in picks} == {"reference", "candidate"}:
            self._open_map(picks)
        self.show_heading()

    def _open_map(self, picks: Sequence[Orphan]) -> None:
        panel = self._panel
        reference, candidate = (self._expression(picks, side) for side in ("reference", "candidate"))

        def done(rule: MapRule | None) -> None:
            panel.orphans.picks = ()
            self.show_heading()
            panel.orphans.refresh()
            if rule is not None:
                panel.add_map_of_person(rule)

        panel.app.push_screen(MapScreen(panel.session, reference, candidate), done)

    def _expression(self, picks: Sequence[Orphan], side: Side) -> str:
        names = [self._panel.session.dumps.label(pick.entry, side) for pick in picks if pick.side == side]
        return f"cat({', '.join(names)})" if len(names) > 1 else "".join(names)

    def show_heading(self) -> None:
        """Show how many orphans are listed, and which are picked."""
        orphans, picks = self._panel.orphans, self._panel.orphans.picks
        count = f"{len(orphans.items)} of {len(orphans.all)}" if orphans.pattern else str(len(orphans.all) or "none")
        text = Text(f"orphans: {count}")
        if picks:
            text.append(f" · {len(picks)} picked of the {picks[0].side}, pick one of the other", "italic")
        elif orphans.pattern:
            text.append(printable(f" matching {orphans.pattern}"))
        self._panel.query_one("#orphans-heading", Static).update(text, layout=False)

    def about(self) -> str:
        """The orphan under the cursor, and why it has no partner."""
        panel = self._panel
        if (orphan := panel.orphans.current) is None:
            return ""
        why = "…" if panel.usage is None else panel.session.dumps.why_orphan(orphan.entry, orphan.side)
        return f"{orphan.side}: {printable(orphan.entry.name)}\n{why}"

    # --- the filter ------------------------------------------------------------------------------

    def open_filter(self) -> None:
        """Ask for a filter."""
        field = self._panel.query_one("#orphan-filter", Input)
        field.add_class("-shown")
        field.focus()

    def filter(self, pattern: str) -> None:
        """Show only orphans that match."""
        self._panel.orphans.show_matching(pattern)
        self.show_heading()

    def close_filter(self) -> None:
        """Return to the orphans; the field stays if it contains a filter."""
        field = self._panel.query_one("#orphan-filter", Input)
        field.set_class(bool(field.value), "-shown")
        self._panel.orphans.focus()
